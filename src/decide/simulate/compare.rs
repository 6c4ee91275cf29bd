//! Comparison of all schedules.

use std::fmt::Write as _;

use gpipe_partitioner::render::{Compared, SchedulesPage};
use gpipe_partitioner::words::{count, given_time, long_time, two_decimals};
use gpipe_partitioner::{Micros, ScheduleKind, When};
use serde_json::{Value, json};

use super::super::{
    Failure, output,
    table::{Align, Table},
    titled_lines::{self, Said},
};
use super::options::{Format, Options};
use super::workload::Refusal;
use super::{Case, report, risks};

/// Every schedule, simulated or refused.
pub(super) struct Cases(Vec<(ScheduleKind, Result<Case, Refusal>)>);

impl Cases {
    pub(super) fn new(options: &Options) -> Result<Self, Failure> {
        let cases: Vec<_> = ScheduleKind::ALL
            .into_iter()
            .map(|kind| (kind, case(options, kind)))
            .collect();
        if let Some((_, Err(refusal))) = cases.first()
            && cases.iter().all(|(_, case)| case.is_err())
        {
            return Err(Failure::Usage(refusal.to_string()));
        }
        Ok(Self(cases))
    }

    /// Formats every schedule as a table or page, the fastest first, or as numbers in the documented
    /// order.
    pub(super) fn told(&self, options: &Options, format: Format) -> String {
        match format {
            Format::Json => output::json(&cases_as_numbers(options, &self.0)),
            Format::Html => page(options, &self.0),
            _ => table(options, &self.0),
        }
    }
}

/// Simulates a schedule: with one chunk if that is usual for it, else with the chunks asked for.
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

/// Sorts the possible schedules: those that train before the others, those that fit before the
/// others, then the fastest first. The flag of each: it trains, fits and is as fast as the first.
fn fastest_first<'a>(
    options: &Options,
    cases: &'a [(ScheduleKind, Result<Case, Refusal>)],
) -> Vec<(&'a Case, bool)> {
    let cases = cases.iter().filter_map(|(_, case)| case.as_ref().ok());
    let mut all: Vec<&Case> = cases.collect();
    let trains = |case: &Case| case.kind.trains() && fits(options, case);
    all.sort_by_key(|case| (!case.kind.trains(), !fits(options, case), case.step()));
    let least = all.first().map(|first| first.step());
    let is_best = |case: &Case| trains(case) && least == Some(case.step());
    all.into_iter().map(|case| (case, is_best(case))).collect()
}

/// Describes the order.
fn order(options: &Options) -> &'static str {
    match (options.limits.are_given(), options.jitter.is_some()) {
        (true, false) => "the fastest first, then those that do not fit or do not train",
        (true, true) => "the fastest with jitter first, then those that do not fit or do not train",
        (false, false) => "the fastest first, then those that do not train",
        (false, true) => "the fastest with jitter first, then those that do not train",
    }
}

/// Describes the marked schedules.
fn best(options: &Options) -> &'static str {
    match (options.limits.are_given(), options.jitter.is_some()) {
        (true, false) => "the fastest that fits",
        (true, true) => "the fastest that fits, with jitter",
        (false, false) => "the fastest",
        (false, true) => "the fastest with jitter",
    }
}

/// Returns the reasons of the refused schedules, a line each.
fn refused(cases: &[(ScheduleKind, Result<Case, Refusal>)]) -> Vec<String> {
    let line = |(kind, case): &(ScheduleKind, Result<Case, Refusal>)| {
        let refusal = case.as_ref().err()?;
        Some(format!("{kind}: {refusal}"))
    };
    cases.iter().filter_map(line).collect()
}

fn page(options: &Options, cases: &[(ScheduleKind, Result<Case, Refusal>)]) -> String {
    let note = |case: &Case| match options.limits.excess(&case.simulation) {
        Some(excess) => format!("does not fit: {}", excess.short()),
        None if !case.kind.trains() => "does not train".to_owned(),
        None => String::new(),
    };
    let all = fastest_first(options, cases).into_iter();
    let all = all.map(|(case, is_best)| Compared {
        name: case.name(),
        simulation: &case.simulation,
        note: note(case),
        fits: fits(options, case),
        is_best,
        more: risk_columns(options, case),
    });
    let page = SchedulesPage {
        title: title(options),
        schedules: all.collect(),
        order: order(options),
        best: best(options),
        refused: refused(cases),
        limit: options.limits.of_each(),
        notes: notes(options),
    };
    page.html()
}

/// Describes the basis of the numbers.
fn notes(options: &Options) -> Vec<String> {
    let mut notes = vec![options.workload.words()];
    notes.extend(risk_notes(options).iter().map(Said::sentence));
    notes
}

/// Describes the columns of jitter and failures, if there are any.
fn risk_notes(options: &Options) -> Vec<Said> {
    let jitter = options.jitter.as_ref().map(|jitter| {
        let deviation = format!("{:.1} %", 100.0 * jitter.share());
        Said::new(
            "jitter",
            risks::jitter_note(jitter, &deviation, "with jitter"),
        )
    });
    let failures = options.failures.as_ref().map(|failures| {
        let every = format!("every {}", given_time(failures.between()));
        let often = format!("every {}", long_time(failures.daly()));
        Said::new("failures", risks::goodput_note(failures, &every, &often))
    });
    jitter.into_iter().chain(failures).collect()
}

/// Describes the compared setting.
fn title(options: &Options) -> String {
    let (replicas, nodes, each) = report::spread(options);
    format!(
        "{replicas}{}{}{nodes}, {}{each}{}",
        count(options.devices, "device"),
        options.limits.each(),
        count(options.micro, "micro-batch"),
        report::samples(options)
    )
}

fn table(options: &Options, cases: &[(ScheduleKind, Result<Case, Refusal>)]) -> String {
    let mut columns = vec![("  schedule", Align::Left)];
    let numbers = ["chunks", "step", "bubble", "in flight"];
    columns.extend(numbers.map(|name| (name, Align::Right)));
    if options.workload.knows_memory() {
        columns.push(("peak memory", Align::Right));
    }
    if options.limits.are_given() {
        columns.push(("fits", Align::Left));
    }
    let all = fastest_first(options, cases);
    let more = all
        .first()
        .map_or_else(Vec::new, |(case, _)| risk_columns(options, case));
    columns.extend(more.iter().map(|(name, _)| (*name, Align::Right)));
    let steps = all.iter().map(|(case, _)| case.makespan());
    let longest = steps.max().unwrap_or(Micros::ZERO);
    let mut table = Table::new(&columns);
    for (case, is_best) in &all {
        let mut row = cells(options, case, longest);
        let mark = if *is_best { '*' } else { ' ' };
        row[0] = format!("{mark} {}", row[0]);
        table.row(row);
    }
    let width = output::width(None);
    let title = format!("{}, {}", title(options), order(options));
    let same = table.take_same(&["goodput"]);
    let spare = [
        "95 % of steps within",
        "longer by",
        "in flight",
        "chunks",
        "goodput",
        "bubble",
        "peak memory",
    ];
    let mut text = output::wrapped(&title, width) + "\n" + &table.render_without(&spare, width);
    // Writing to a String cannot fail, here and below.
    if all.iter().any(|(_, is_best)| *is_best) {
        let _ = writeln!(text, "* {}", best(options));
    }
    if let Some(nearest) = nothing_fits(options, &all) {
        let _ = writeln!(text, "{}", output::wrapped(&nearest, width));
    }
    for (name, cell) in same {
        let _ = writeln!(text, "{name} {cell} with each of them");
    }
    let mut all = risk_notes(options);
    all.push(options.workload.said());
    text.push('\n');
    text.push_str(&titled_lines::lines(&all, width));
    let refused = refused(cases);
    if !refused.is_empty() {
        let refused = output::wrapped(&refused.join("\n"), width);
        let _ = write!(text, "\nnot for these numbers:\n{refused}\n");
    }
    text
}

/// Returns a note if no schedule that trains fits.
fn nothing_fits(options: &Options, all: &[(&Case, bool)]) -> Option<String> {
    let trains = all.iter().filter(|(case, _)| case.kind.trains());
    let trains = trains.map(|(case, _)| (case.name(), &case.simulation));
    let (name, excess) = options.limits.nearest(trains)?;
    let instead = match options.workload.recompute() {
        When::Always => "",
        _ => "; --recompute always takes less memory",
    };
    Some(format!(
        "no schedule that trains fits: the nearest is {name}, {}{instead}",
        excess.short()
    ))
}

fn fits(options: &Options, case: &Case) -> bool {
    options.limits.excess(&case.simulation).is_none()
}

/// Formats a row, with the step in the unit of the longest.
fn cells(options: &Options, case: &Case, longest: Micros) -> Vec<String> {
    let simulation = &case.simulation;
    let schedule = simulation.schedule();
    let in_flight = (0..schedule.schedule().devices())
        .map(|device| schedule.peak_in_flight_on(gpipe_partitioner::DeviceId(device)));
    let mut cells = vec![
        case.name(),
        case.chunks.to_string(),
        simulation.makespan().in_column(longest),
        format!("{:.1} %", 100.0 * simulation.timeline.bubble_fraction()),
        two_decimals(in_flight.fold(0.0, f64::max)),
    ];
    if options.workload.knows_memory() {
        let peak = simulation.peak_bytes().into_iter().max();
        cells.push(peak.unwrap_or_default().to_string());
    }
    if options.limits.are_given() {
        let excess = options.limits.excess(simulation);
        cells.push(excess.map_or_else(
            || "yes".to_owned(),
            |excess| format!("no: {}", excess.short()),
        ));
    }
    cells.extend(
        risk_columns(options, case)
            .into_iter()
            .map(|(_, cell)| cell),
    );
    cells
}

/// Returns the cost of jitter and failures, if asked for, each with the name of its column.
fn risk_columns(options: &Options, case: &Case) -> Vec<(&'static str, String)> {
    // Rounded before the sign, so that no `-0.0` appears.
    let percent = |share: f64| format!("{:.1} %", (1000.0 * share).round() / 10.0 + 0.0);
    let mut columns = Vec::new();
    if let Some(steps) = &case.jittered {
        columns.extend([
            ("with jitter", steps.mean().to_string()),
            ("longer by", percent(steps.slowdown())),
            ("95 % of steps within", steps.quantile(0.95).to_string()),
        ]);
    }
    if let Some(failures) = &options.failures {
        let interval = failures.interval(case.step());
        let goodput = interval.map(|own| percent(own.goodput));
        columns.push(("goodput", goodput.unwrap_or_else(|| "-".to_owned())));
    }
    columns
}
