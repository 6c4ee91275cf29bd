//! Many simulations in one table or chart.

use std::fmt::Write as _;

use gpipe_partitioner::words::{count, two_decimals};
use gpipe_partitioner::{
    Micros, RiskColumns, ScheduleKind, Shape, Sweep, SweepOutcome, SweepPoint, render,
};
use serde_json::{Value, json};

use super::super::{
    Failure, input, output,
    table::{Align, Table},
    titled_lines::{self, Said},
};
use super::options::{Args, Format, Options};
use super::workload::{Refusal, Workload};
use super::{Case, report, risks};

/// Most combinations.
const MOST: usize = 10_000;

/// Parameter with its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SweptFlag {
    Devices(Vec<usize>),
    Micro(Vec<usize>),
    Schedule(Vec<ScheduleKind>),
    Chunks(Vec<usize>),
    /// Shares of jitter.
    Jitter(Vec<f64>),
    /// Mean times between failures.
    Mtbf(Vec<Micros>),
}

/// Parses `micro=8,16,32`.
pub(super) fn swept(text: &str) -> Result<SweptFlag, String> {
    let wrong = "must be devices, micro, schedule, chunks, jitter or mtbf with values, such as \
                 micro=8,16,32";
    let (what, list) = text.split_once('=').ok_or(wrong)?;
    match what.trim().trim_start_matches("--") {
        "devices" => Ok(SweptFlag::Devices(values(list, input::at_least_one)?)),
        "micro" | "micro-batches" => Ok(SweptFlag::Micro(values(list, input::at_least_one)?)),
        "schedule" => Ok(SweptFlag::Schedule(values(list, input::schedule)?)),
        "chunks" => Ok(SweptFlag::Chunks(values(list, input::at_least_one)?)),
        "jitter" => Ok(SweptFlag::Jitter(values(list, percent)?)),
        "mtbf" => Ok(SweptFlag::Mtbf(values(list, input::micros)?)),
        _ => Err(wrong.to_owned()),
    }
}

/// Parses a share in percent: `5` or `5%`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%');
    input::share(&format!("{number}%")).map_err(|_| {
        format!("`{text}` is no jitter: it is in percent, from 0 to 100, such as 0,2,5,10")
    })
}

/// Parses a list, keeping each value once.
fn values<T: PartialEq>(
    list: &str,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    for value in list.split(',') {
        let value = parse(value)?;
        if !values.contains(&value) {
            values.push(value);
        }
    }
    Ok(values)
}

/// Returns the sweep that the flags ask for.
fn asked(args: &Args) -> Result<Sweep, Failure> {
    let mut sweep = Sweep {
        schedules: args.schedule.into_iter().collect(),
        devices: args.devices.into_iter().collect(),
        micro_batches: args.micro.into_iter().collect(),
        chunks: args.chunks.into_iter().collect(),
        risks: Vec::new(),
    };
    let (mut jitter, mut mtbf) = (Vec::new(), Vec::new());
    for flag in &args.sweep {
        match flag {
            SweptFlag::Devices(values) => sweep.devices.clone_from(values),
            SweptFlag::Micro(values) => sweep.micro_batches.clone_from(values),
            SweptFlag::Schedule(values) => sweep.schedules.clone_from(values),
            SweptFlag::Chunks(values) => sweep.chunks.clone_from(values),
            SweptFlag::Jitter(values) => jitter.clone_from(values),
            SweptFlag::Mtbf(values) => mtbf.clone_from(values),
        }
    }
    sweep.risks = args.risks.swept(&jitter, &mtbf)?;
    if sweep.schedules.is_empty() {
        sweep.schedules = ScheduleKind::ALL
            .into_iter()
            .filter(|kind| kind.trains())
            .collect();
    }
    for (values, flag) in [(&sweep.devices, "devices"), (&sweep.micro_batches, "micro")] {
        if values.is_empty() {
            let why =
                format!("--{flag} is missing: give it, or its values as --sweep {flag}=4,8,16");
            return Err(Failure::Usage(why));
        }
    }
    Ok(sweep)
}

/// Every combination with its prediction.
pub(super) struct Swept {
    sweep: Sweep,
    points: Vec<SweepPoint>,
}

impl Swept {
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        let sweep = asked(args)?;
        let combinations = sweep.shapes().len() * sweep.risks.len();
        if combinations > MOST {
            return Err(Failure::Usage(format!(
                "{combinations} combinations are too many for a --sweep: at most {MOST}"
            )));
        }
        let points = points(args, &sweep)?;
        if let Some(Err(why)) = points.first().map(|point| &point.outcome)
            && points.iter().all(|point| point.outcome.is_err())
        {
            let (first, all) = (&points[0], points.len());
            return Err(Failure::Usage(format!(
                "none of {} can be: {} with {}, {} and {}: {why}",
                count(all, "combination"),
                first.schedule,
                count(first.shape.devices, "device"),
                count(first.shape.chunks, "chunk"),
                count(first.shape.micro_batches, "micro-batch")
            )));
        }
        Ok(Self { sweep, points })
    }

    /// Formats all combinations as a table, a page or numbers.
    pub(super) fn told(&self, args: &Args, format: Format) -> Result<String, Failure> {
        let Self { sweep, points } = self;
        Ok(match format {
            Format::Json => output::json(&numbers(points)),
            Format::Html => {
                let notes = notes(args, sweep)?;
                render::sweep_html(points, &title(args, sweep, points), &notes)
            }
            _ => {
                let mut below = risk_notes(sweep);
                below.extend(workload(args, sweep)?.map(|own| own.said()));
                table(points, &below)
            }
        })
    }
}

/// Describes the basis of the numbers.
fn notes(args: &Args, sweep: &Sweep) -> Result<Vec<String>, Failure> {
    let words = workload(args, sweep)?.map(|own| own.words());
    Ok(words
        .into_iter()
        .chain(risk_notes(sweep).iter().map(Said::sentence))
        .collect())
}

/// Returns the workload of the first shape, which all shapes have.
fn workload(args: &Args, sweep: &Sweep) -> Result<Option<Workload>, Failure> {
    let first = sweep.devices.first().zip(sweep.micro_batches.first());
    let options = first.map(|(&devices, &micro)| Options::of(args, devices, micro));
    Ok(options.transpose()?.map(|own| own.workload))
}

/// Describes the columns of jitter and failures, if there are any.
fn risk_notes(sweep: &Sweep) -> Vec<Said> {
    let jitter = sweep.risks.iter().find_map(|risk| risk.jitter);
    let jitter = jitter.map(|jitter| {
        let words = risks::jitter_note(&jitter, "that of the column `jitter`", "step");
        Said::new("jitter", words)
    });
    let failures = sweep.risks.iter().find_map(|risk| risk.failures);
    let failures = failures.as_ref().map(|own| {
        let column = "as often as its column says";
        Said::new("failures", risks::goodput_note(own, column, column))
    });
    jitter.into_iter().chain(failures).collect()
}

/// Simulates every combination; shapes count per replica.
fn points(args: &Args, sweep: &Sweep) -> Result<Vec<SweepPoint>, Failure> {
    let mut points = Vec::new();
    for (&devices, &micro) in
        (sweep.devices.iter()).flat_map(|p| sweep.micro_batches.iter().map(move |m| (p, m)))
    {
        let options = Options::of(args, devices, micro)?;
        if points.is_empty() {
            options
                .workload
                .profile()
                .inspect(|own| input::say_doubts(own));
        }
        let one = Sweep {
            devices: vec![options.devices],
            micro_batches: vec![options.micro],
            ..sweep.clone()
        };
        points.extend(one.run(|kind, shape: Shape| {
            let case = match sweep.chunks.as_slice() {
                // `auto` chooses the chunks.
                [] => Case::new(&options, kind)?,
                _ => Case::with_chunks(&options, kind, shape.chunks)?,
            };
            match options.limits.excess(&case.simulation) {
                Some(excess) => Err(Refusal::new(excess.words())),
                None => Ok(case.simulation),
            }
        }));
    }
    Ok(points)
}

/// Describes the number of combinations, and the parameters.
fn title(args: &Args, sweep: &Sweep, points: &[SweepPoint]) -> String {
    let has = |risk: fn(&SweptFlag) -> bool| args.sweep.iter().any(risk);
    let all = [
        ("schedule", sweep.schedules.len() > 1),
        ("devices", sweep.devices.len() > 1),
        ("micro-batches", sweep.micro_batches.len() > 1),
        ("chunks", sweep.chunks.len() > 1),
        ("jitter", has(|flag| matches!(flag, SweptFlag::Jitter(_)))),
        ("failures", has(|flag| matches!(flag, SweptFlag::Mtbf(_)))),
    ];
    let swept = all.into_iter().filter(|(_, varies)| *varies);
    let swept: Vec<&str> = swept.map(|(name, _)| name).collect();
    let of = match swept.split_last() {
        None => String::new(),
        Some((last, [])) => format!(" of {last}"),
        Some((last, others)) => format!(" of {} and {last}", others.join(", ")),
    };
    let fixed = [
        (&sweep.devices, "device"),
        (&sweep.micro_batches, "micro-batch"),
    ];
    let fixed = fixed
        .into_iter()
        .filter_map(|(numbers, name)| match numbers.as_slice() {
            [one] => Some(format!(", {}", count(*one, name))),
            _ => None,
        });
    let fixed: String = fixed.collect();
    let combinations = format!("{}{of}{fixed}", count(points.len(), "combination"));
    let refused = points.iter().filter(|point| point.outcome.is_err()).count();
    match refused {
        0 => combinations,
        refused => format!("{combinations}, {refused} of them not there"),
    }
}

fn numbers(points: &[SweepPoint]) -> Value {
    let number = |point: &SweepPoint| {
        let mut number = json!({
            "schedule": point.schedule.name(),
            "devices": point.shape.devices,
            "chunks": point.shape.chunks,
            "micro_batches": point.shape.micro_batches,
        });
        match &point.outcome {
            Ok(own) => {
                number["makespan_us"] = json!(own.makespan);
                number["bubble_fraction"] = json!(own.bubble_fraction);
                number["peak_in_flight"] = json!(own.peak_in_flight);
                number["peak_bytes"] = json!(own.peak_bytes);
                risks::add_to(&mut number, point, own);
            }
            Err(why) => number["refused"] = json!(why),
        }
        number
    };
    points.iter().map(number).collect()
}

/// Columns that are stated once if all rows have the same value.
const GIVEN: [&str; 7] = [
    "schedule",
    "devices",
    "micro-batches",
    "chunks",
    "jitter",
    "failure every",
    "peak memory",
];

/// Formats the numbers, with notes below them.
fn table(points: &[SweepPoint], notes: &[Said]) -> String {
    let (risks, width) = (RiskColumns::of(points), output::width(None));
    let mut names = vec!["devices", "micro-batches", "chunks"];
    names.extend(risks.given_titles());
    names.extend([
        "step",
        "per micro-batch",
        "bubble",
        "in flight",
        "peak memory",
    ]);
    names.extend(risks.found_titles());
    let numbers = names.into_iter().map(|name| (name, Align::Right));
    let columns: Vec<_> = [("schedule", Align::Left)]
        .into_iter()
        .chain(numbers)
        .collect();
    let mut table = Table::new(&columns);
    let mut refused: Vec<String> = Vec::new();
    for point in points {
        match &point.outcome {
            Ok(own) => table.row(cells(point, own, risks)),
            Err(why) => {
                let Shape {
                    devices,
                    chunks,
                    micro_batches,
                } = point.shape;
                let line = format!(
                    "{}, {}, {}, {}: {why}\n",
                    point.schedule,
                    count(devices, "device"),
                    count(chunks, "chunk"),
                    count(micro_batches, "micro-batch")
                );
                // A refusal is the same for all jitter and failures.
                if !refused.contains(&line) {
                    refused.push(line);
                }
            }
        }
    }
    let mut same = table.take_same(&GIVEN);
    // Unknown memory.
    same.retain(|(_, cell)| cell != "-");
    let same: Vec<String> = same
        .into_iter()
        .map(|(name, cell)| format!("{name} {cell}"))
        .collect();
    let mut text = String::new();
    if !same.is_empty() {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            text,
            "{}",
            output::wrapped(&format!("all with {}", same.join(", ")), width)
        );
    }
    text.push_str(
        &table.render_without(&["per micro-batch", "in flight", "checkpoint every"], width),
    );
    text.push('\n');
    text.push_str(&titled_lines::lines(notes, width));
    if !refused.is_empty() {
        let refused = output::wrapped(&refused.concat(), width);
        let _ = write!(text, "\nnot for these numbers:\n{refused}\n");
    }
    text
}

fn cells(point: &SweepPoint, own: &SweepOutcome, risks: RiskColumns) -> Vec<String> {
    let shape = point.shape;
    let mut cells = vec![
        point.schedule.to_string(),
        shape.devices.to_string(),
        shape.micro_batches.to_string(),
        shape.chunks.to_string(),
    ];
    cells.extend(risks.given(point));
    cells.extend([
        own.step().to_string(),
        point.each().unwrap_or_default().to_string(),
        format!("{:.1} %", 100.0 * own.bubble()),
        two_decimals(own.peak_in_flight),
        report::memory(own.peak_bytes),
    ]);
    cells.extend(risks.found(own));
    cells
}
