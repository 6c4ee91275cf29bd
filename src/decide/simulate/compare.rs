//! All schedules side by side.

use std::fmt::Write as _;

use gpipe_partitioner::render::{self, Compared};
use gpipe_partitioner::words::count;
use gpipe_partitioner::{Bytes, ScheduleKind};
use serde_json::{Value, json};

use super::super::{
    Failure, output,
    table::{Align, Table},
};
use super::options::{Format, Options};
use super::workload::Refusal;
use super::{Case, report};

/// A table or a page of every schedule, the fastest first; as numbers in the order in which they
/// are documented.
pub(super) fn run(options: &Options) -> Result<String, Failure> {
    let cases: Vec<_> = ScheduleKind::ALL
        .into_iter()
        .map(|kind| (kind, case(options, kind)))
        .collect();
    if let Some((_, Err(refusal))) = cases.first()
        && cases.iter().all(|(_, case)| case.is_err())
    {
        return Err(Failure::Usage(refusal.to_string()));
    }
    Ok(match options.format {
        Format::Json => output::json(&cases_as_numbers(options, &cases)),
        Format::Html => page(options, &cases),
        _ => table(options, &cases),
    })
}

/// A schedule with its usual chunks, where it has several with those asked for.
fn case(options: &Options, kind: ScheduleKind) -> Result<Case, Refusal> {
    match kind.default_chunks() {
        1 if kind != ScheduleKind::Auto => Case::with_chunks(options, kind, 1),
        _ => Case::new(options, kind),
    }
}

fn cases_as_numbers(options: &Options, cases: &[(ScheduleKind, Result<Case, Refusal>)]) -> Value {
    let number = |(kind, case): &(ScheduleKind, Result<Case, Refusal>)| match case {
        Ok(case) => report::numbers(options, case),
        Err(refusal) => json!({"schedule": kind.name(), "refused": refusal.to_string()}),
    };
    cases.iter().map(number).collect()
}

/// All that can be, the fastest first; what cannot train does less, and is no faster for it, and what
/// does not fit is none at all. With them, which of the first trains and fits.
fn fastest_first<'a>(
    options: &Options,
    cases: &'a [(ScheduleKind, Result<Case, Refusal>)],
) -> (Vec<&'a Case>, Option<&'a Case>) {
    let cases = cases.iter().filter_map(|(_, case)| case.as_ref().ok());
    let mut all: Vec<&Case> = cases.collect();
    let trains = |case: &Case| case.kind.trains() && fits(options, case);
    all.sort_by_key(|case| (!trains(case), !fits(options, case), case.makespan()));
    let best = all.first().copied().filter(|best| trains(best));
    (all, best)
}

fn page(options: &Options, cases: &[(ScheduleKind, Result<Case, Refusal>)]) -> String {
    let (all, _) = fastest_first(options, cases);
    let note = |case: &Case| match options.limits.excess(&case.simulation) {
        Some(excess) => format!("does not fit: {}", excess.short()),
        None if !case.kind.trains() => "trains nothing".to_owned(),
        None => String::new(),
    };
    let all = all.into_iter().map(|case| Compared {
        name: case.name(),
        simulation: &case.simulation,
        note: note(case),
    });
    render::schedules_html(&all.collect::<Vec<_>>(), &title(options))
}

/// What is compared.
fn title(options: &Options) -> String {
    let (replicas, nodes, each) = report::spread(options);
    format!(
        "{replicas}{}{nodes}, {}{each}{}",
        count(options.devices, "device"),
        count(options.micro, "micro-batch"),
        report::samples(options)
    )
}

fn table(options: &Options, cases: &[(ScheduleKind, Result<Case, Refusal>)]) -> String {
    let mut columns = vec![("  schedule", Align::Left)];
    let numbers = ["chunks", "step", "bubble", "in flight", "peak memory"];
    columns.extend(numbers.map(|name| (name, Align::Right)));
    if options.limits.are_given() {
        columns.push(("fits", Align::Left));
    }
    if options.jitter.is_some() {
        columns
            .extend(["with jitter", "longer by", "95 % within"].map(|name| (name, Align::Right)));
    }
    if options.failures.is_some() {
        columns.push(("goodput", Align::Right));
    }
    let mut table = Table::new(&columns);
    let mut refused = String::new();
    for (kind, case) in cases {
        if let Err(refusal) = case {
            // Writing to a String cannot fail.
            let _ = writeln!(refused, "{kind}: {refusal}");
        }
    }
    let (all, best) = fastest_first(options, cases);
    let trains = |case: &Case| case.kind.trains() && fits(options, case);
    for case in all {
        let mut row = cells(options, case);
        let is_best = best.is_some_and(|best| best.makespan() == case.makespan());
        let mark = if trains(case) && is_best { '*' } else { ' ' };
        row[0] = format!("{mark} {}", row[0]);
        table.row(row);
    }
    let last = if options.limits.are_given() {
        "; last what does not fit or trains nothing"
    } else {
        "; last what trains nothing"
    };
    let mut text = format!("{}, the fastest first{last}\n", title(options));
    text.push_str(&table.render());
    if best.is_some() {
        text.push_str(if options.limits.are_given() {
            "* the fastest that fits\n"
        } else {
            "* the fastest\n"
        });
    }
    if !refused.is_empty() {
        let _ = write!(text, "\nnot for these numbers:\n{refused}");
    }
    text
}

fn fits(options: &Options, case: &Case) -> bool {
    options.limits.excess(&case.simulation).is_none()
}

fn cells(options: &Options, case: &Case) -> Vec<String> {
    let simulation = &case.simulation;
    let peak = simulation
        .peak_bytes()
        .into_iter()
        .max()
        .unwrap_or_default();
    let peak = if options.workload.knows_memory() {
        peak
    } else {
        Bytes::ZERO
    };
    let schedule = simulation.schedule();
    let in_flight = (0..schedule.schedule().devices())
        .map(|device| schedule.peak_in_flight_on(gpipe_partitioner::DeviceId(device)));
    let mut cells = vec![
        case.name(),
        case.chunks.to_string(),
        simulation.makespan().to_string(),
        format!("{:.1} %", 100.0 * simulation.timeline.bubble_fraction()),
        report::in_flight(in_flight.fold(0.0, f64::max)),
        report::memory(peak),
    ];
    if options.limits.are_given() {
        let excess = options.limits.excess(simulation);
        cells.push(excess.map_or_else(|| "yes".to_owned(), |excess| excess.short()));
    }
    if let Some(jitter) = &options.jitter {
        let steps = simulation.jittered(jitter);
        cells.extend([
            steps.mean().to_string(),
            format!("{:.1} %", 100.0 * steps.slowdown()),
            steps.quantile(0.95).to_string(),
        ]);
    }
    if let Some(failures) = &options.failures {
        let interval = failures.interval(simulation.makespan());
        let goodput = interval.map(|own| format!("{:.1} %", 100.0 * own.goodput));
        cells.push(goodput.unwrap_or_else(|| "-".to_owned()));
    }
    cells
}
