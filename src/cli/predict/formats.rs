//! Writes predictions as a table, a CSV file or JSON.

use std::path::Path;

use gpipe_partitioner::words::{decimals, six_digits};
use serde_json::{Value, json};

use super::{Args, Told};
use crate::table::{Align, Table};
use crate::trained::Trained;
use crate::{Failure, output};

/// Checks that the output file can be written, before anything is computed.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    let wrong = |why: &str| Failure::Usage(format!("--output {}: {why}", path.display()));
    if path
        .extension()
        .is_none_or(|end| !end.eq_ignore_ascii_case("csv"))
    {
        return Err(wrong(
            "a CSV file is written: name one that ends in .csv, or print --json",
        ));
    }
    output::writable(path).map_err(|why| wrong(&why))
}

pub(super) fn write(
    args: &Args,
    trained: &Trained,
    told: &[(String, Told)],
) -> Result<(), Failure> {
    if args.json {
        let samples: Vec<Value> = told.iter().map(|own| object(own, args.top)).collect();
        let mut all = json!({ "model": trained.spec.name(), "samples": samples });
        if let Some(step) = trained.settings.step {
            all["step"] = step.into();
        }
        return output::print(&output::json(&all));
    }
    let names = Names::of(args, trained);
    let Some(path) = &args.output else {
        return output::print(&table(told, args.top, &names).render_within(output::width(None)));
    };
    output::write(Some(path), &csv(told, args.top, &names)?)
}

/// Column headings of the samples and of a regression's number.
struct Names<'a> {
    sample: &'a str,
    number: &'a str,
}

impl<'a> Names<'a> {
    fn of(args: &'a Args, trained: &'a Trained) -> Self {
        let kept = trained.settings.options.kept.as_ref();
        // The target column, if the data was a table.
        let target = kept.and_then(|kept| kept["target"].as_str());
        Self {
            sample: args.id.as_deref().unwrap_or("sample"),
            number: target.unwrap_or("value"),
        }
    }
}

fn object((sample, told): &(String, Told), top: usize) -> Value {
    match told {
        Told::Numbers(all) => json!({ "sample": sample, "values": all }),
        Told::Probabilities(all) => json!({ "sample": sample, "probabilities": all }),
        Told::Classes(all) => {
            let classes = all.iter().take(top);
            let classes = classes.map(|(class, own)| json!({ "class": class, "probability": own }));
            json!({ "sample": sample, "classes": classes.collect::<Vec<_>>() })
        }
    }
}

/// Headings of the columns after the samples' names.
fn headings(told: &[(String, Told)], top: usize, names: &Names<'_>) -> Vec<String> {
    match told.first() {
        Some((_, Told::Numbers(all))) => numbered(names.number, all.len()),
        Some((_, Told::Probabilities(all))) => numbered("probability", all.len()),
        Some((_, Told::Classes(all))) => {
            let numbers = (1..=top.min(all.len())).map(|k| match k {
                1 => String::new(),
                _ => format!(" {k}"),
            });
            let pair = |k: String| [format!("class{k}"), format!("probability{k}")];
            numbers.flat_map(pair).collect()
        }
        None => Vec::new(),
    }
}

/// Column headings: the name, with numbers from 1 if there are several.
fn numbered(name: &str, count: usize) -> Vec<String> {
    if count == 1 {
        return vec![name.to_owned()];
    }
    (1..=count).map(|k| format!("{name} {k}")).collect()
}

/// Returns a sample's cells after its name; `number` formats numbers.
fn cells(told: &Told, top: usize, number: impl Fn(f64, bool) -> String) -> Vec<String> {
    match told {
        Told::Numbers(all) => all.iter().map(|own| number(*own, false)).collect(),
        Told::Probabilities(all) => all.iter().map(|own| number(*own, true)).collect(),
        Told::Classes(all) => {
            let top = all.iter().take(top);
            top.flat_map(|(class, own)| [class.clone(), number(*own, true)])
                .collect()
        }
    }
}

/// Numbers from here on are not given with four decimals.
const LARGE: f64 = 1_000.0;

fn table(told: &[(String, Told)], top: usize, names: &Names<'_>) -> Table {
    let headings = headings(told, top, names);
    let columns = headings.iter().map(|own| {
        let align = if own.starts_with("class") && own != names.number {
            Align::Left
        } else {
            Align::Right
        };
        (own.as_str(), align)
    });
    let columns: Vec<_> = std::iter::once((names.sample, Align::Left))
        .chain(columns)
        .collect();
    let mut table = Table::new(&columns);
    let number = |own: f64, share: bool| {
        if share {
            percent(own)
        } else {
            let is_large = own.abs() >= LARGE;
            if is_large {
                six_digits(own)
            } else {
                decimals(own, 4)
            }
        }
    };
    for (sample, told) in told {
        let sample = output::plain(sample).into_owned();
        table.row(std::iter::once(sample).chain(cells(told, top, number)));
    }
    table
}

/// Formats a probability in percent, without exponents.
fn percent(share: f64) -> String {
    let percent = format!("{:.1}", 100.0 * share);
    match percent.as_str() {
        "0.0" if share > 0.0 => "< 0.1 %".to_owned(),
        "100.0" if share < 1.0 => "> 99.9 %".to_owned(),
        _ => format!("{percent} %"),
    }
}

fn csv(told: &[(String, Told)], top: usize, names: &Names<'_>) -> Result<String, Failure> {
    let headings = headings(told, top, names).into_iter();
    let headings = headings.map(|own| {
        // A column's own name is kept unchanged.
        if own == names.number {
            own
        } else {
            own.replace(' ', "_")
        }
    });
    let mut writer = csv::Writer::from_writer(Vec::new());
    let head = std::iter::once(names.sample.to_owned()).chain(headings);
    writer.write_record(head).map_err(anyhow::Error::from)?;
    for (sample, told) in told {
        let cells = cells(told, top, |own, _| own.to_string());
        let row = std::iter::once(sample.clone()).chain(cells);
        writer.write_record(row).map_err(anyhow::Error::from)?;
    }
    let bytes = writer
        .into_inner()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(String::from_utf8(bytes).map_err(anyhow::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was printed as `6.91e-1 %`.
    #[test]
    fn a_small_probability_is_no_power_of_ten() {
        let all = [0.00691, 0.0, 1.2e-9, 0.5, 0.999_99, 1.0].map(percent);
        let wanted = ["0.7 %", "0.0 %", "< 0.1 %", "50.0 %", "> 99.9 %", "100.0 %"];
        assert_eq!(all, wanted);
    }
}
