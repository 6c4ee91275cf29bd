//! Metrics that a run wrote of its steps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use gpipe_partitioner::Bytes;
use serde_json::{Map, Value};

use crate::find_run;

/// Longest line that is read, in bytes; a run writes some hundreds.
const MAX_LINE: u64 = 1 << 20;

/// File name in a run folder.
const METRICS: &str = "metrics.jsonl";

/// A step and a number.
pub(super) type Point = (u64, f64);

/// Metrics of a run over its steps.
#[derive(Debug)]
pub(super) struct History {
    /// The run, as given on the command line.
    pub(super) name: String,
    /// By field: points in the order of steps, each step once.
    series: BTreeMap<String, Vec<Point>>,
}

impl History {
    /// Reads `metrics.jsonl` of a run folder, or a file like it.
    ///
    /// The last line may be torn if the run still goes on or was killed: it is then skipped. If a
    /// step occurs twice, its last line counts.
    ///
    /// # Errors
    /// Names the file, the line and the fault.
    pub(super) fn read(run: &Path) -> Result<Self, String> {
        let path = file_of(run)?;
        let wrong = |why: String| format!("{}: {why}", path.display());
        let file = File::open(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let series = parse(BufReader::new(file)).map_err(|(line, why)| match line {
            0 => wrong(why),
            line => format!("{}, line {line}: {why}", path.display()),
        })?;
        Ok(Self {
            name: name_of(run),
            series,
        })
    }

    /// The points of a field.
    pub(super) fn points(&self, field: &str) -> Option<&[Point]> {
        self.series.get(field).map(Vec::as_slice)
    }

    /// The fields that have numbers.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        self.series.keys().map(String::as_str)
    }

    /// Returns the first and the last step with any number.
    pub(super) fn steps(&self) -> Option<(u64, u64)> {
        let ends = |points: &Vec<Point>| Some((points.first()?.0, points.last()?.0));
        let all = self.series.values().filter_map(ends);
        all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

fn file_of(run: &Path) -> Result<PathBuf, String> {
    let shown = run.display();
    if !run.exists() {
        return Err(format!("there is no run {shown}{}", find_run::run(run)));
    }
    if !run.is_dir() {
        return Ok(run.to_owned());
    }
    let path = run.join(METRICS);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "{shown} is no run folder: it has no {METRICS}, which `train` writes{}",
        find_run::run(run)
    ))
}

/// Returns the run's name: the path as given, or the name of the folder that `.` is.
fn name_of(run: &Path) -> String {
    let folder = match run.file_name() {
        Some(name) if name == METRICS => run.parent().unwrap_or(run),
        _ => run,
    };
    let plain = folder.components().collect::<PathBuf>();
    let named = plain.file_name().is_some();
    let full = folder.canonicalize().ok().filter(|_| !named);
    let full = full.as_deref().and_then(Path::file_name);
    full.map_or_else(
        || plain.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// Number of the wrong line, or 0 for the whole file, and the reason.
type Wrong = (usize, String);

fn parse(mut text: impl BufRead) -> Result<BTreeMap<String, Vec<Point>>, Wrong> {
    let mut series = BTreeMap::new();
    let mut line = Vec::new();
    let mut whole = 0;
    for number in 1.. {
        line.clear();
        let read = (&mut text).take(MAX_LINE).read_until(b'\n', &mut line);
        read.map_err(|error| (number, format!("cannot be read: {error}")))?;
        let ended = line.last() == Some(&b'\n');
        if line.is_empty() {
            break;
        }
        if !ended && line.len() as u64 == MAX_LINE {
            let why = format!(
                "is longer than {}: this is no file of metrics",
                Bytes(MAX_LINE)
            );
            return Err((number, why));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match record(&line) {
            Ok((step, record)) => add(&mut series, step, record),
            Err(_) if !ended && whole > 0 => break,
            Err(why) => return Err((number, why)),
        }
        whole += 1;
    }
    if whole == 0 {
        return Err((0, "is empty: no step has ended yet".to_owned()));
    }
    series.values_mut().for_each(in_order);
    Ok(series)
}

/// Parses a line into its step and fields.
fn record(line: &[u8]) -> Result<(u64, Map<String, Value>), String> {
    let what = "is no line of metrics, a JSON object with a `step`";
    let record: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| format!("{what}: {error}"))?;
    let step = record.get("step").and_then(Value::as_u64);
    let step = step.ok_or_else(|| format!("{what}: `step` is missing or no whole number"))?;
    Ok((step, record))
}

fn add(series: &mut BTreeMap<String, Vec<Point>>, step: u64, record: Map<String, Value>) {
    let mut put = |name: String, value: &Value| {
        if let Some(number) = value.as_f64() {
            series.entry(name).or_default().push((step, number));
        }
    };
    for (name, value) in record {
        match &value {
            _ if name == "step" => {}
            // One curve per entry, such as a device.
            Value::Array(values) => {
                for (place, value) in values.iter().enumerate() {
                    put(format!("{name}.{place}"), value);
                }
            }
            value => put(name, value),
        }
    }
}

/// Sorts by step; of several points of a step, the last one stays.
fn in_order(points: &mut Vec<Point>) {
    points.reverse();
    points.sort_by_key(|&(step, _)| step);
    points.dedup_by_key(|&mut (step, _)| step);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(text: &str) -> Result<Vec<Point>, Wrong> {
        Ok(parse(text.as_bytes())?.remove("loss").unwrap_or_default())
    }

    #[test]
    fn the_last_line_of_a_step_counts_and_steps_are_in_order() {
        let text = "{\"step\":1,\"loss\":3}\n{\"step\":3,\"loss\":9}\n\n\
                    {\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1.5}\n";
        assert_eq!(losses(text).unwrap(), [(1, 3.0), (2, 2.0), (3, 1.5)]);
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_no_other() {
        let whole = "{\"step\":1,\"loss\":3}\n";
        assert_eq!(losses(&format!("{whole}{{\"st")).unwrap(), [(1, 3.0)]);
        // A complete line without a line end is not torn.
        assert_eq!(losses(whole.trim()).unwrap(), [(1, 3.0)]);
        let (line, why) = losses(&format!("{whole}{{\"st\n{whole}")).unwrap_err();
        assert!(line == 2 && why.contains("no line of metrics"), "{why}");
        assert_eq!(losses("{\"st").unwrap_err().0, 1);
        assert!(losses("\n").unwrap_err().1.contains("no step has ended"));
    }

    #[test]
    fn what_is_no_number_has_no_point_and_each_entry_of_a_list_its_own_curve() {
        let text = "{\"step\":1,\"loss\":null,\"peak\":[5,7],\"recompute\":\"never\"}\n";
        let series = parse(text.as_bytes()).unwrap();
        let names: Vec<&String> = series.keys().collect();
        assert_eq!(names, ["peak.0", "peak.1"]);
        assert_eq!(series["peak.1"], [(1, 7.0)]);
    }

    #[test]
    fn a_run_is_called_what_it_was_asked_for_by() {
        assert_eq!(name_of(Path::new("runs/1/")), "runs/1");
        assert_eq!(name_of(Path::new("runs/1/metrics.jsonl")), "runs/1");
        assert!(!name_of(Path::new(".")).contains('.'));
    }
}
