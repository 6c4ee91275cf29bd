//! Runners-up of a plan: by default the best of every other kind.

use std::collections::HashSet;
use std::fmt::Write as _;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Alternative, Plan, ScheduleKind};

use super::super::table::{Align, Table};
use super::super::titled_lines::Said;

/// Most rows if not all are asked for.
const MOST: usize = 6;
/// Relative difference below which steps are equal up to rounding in f64.
const SAME: f64 = 1e-9;

/// Runners-up to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// None.
    Nothing,
    /// The most informative ones.
    Few,
    /// Every one.
    All,
}

/// Alternatives that differ only in the name of their schedule.
struct Row<'a> {
    first: &'a Alternative,
    schedules: Vec<ScheduleKind>,
}

/// Returns the table in `width` columns, and a count of omitted rows; empty without runners-up.
pub(super) fn text(plan: &Plan, width: usize, shown: Shown) -> String {
    let rows = merged(&plan.alternatives);
    let all = shown == Shown::All;
    let shown = match shown {
        Shown::Nothing => Vec::new(),
        Shown::Few => telling(plan, &rows),
        Shown::All => (0..rows.len()).collect(),
    };
    if shown.is_empty() {
        return String::new();
    }
    let own = (plan.replicas, plan.devices());
    let spread = shown.iter().any(|&row| layout(rows[row].first) != own);
    let replicated = |row: &usize| rows[*row].first.replicas > 1;
    let micro = if shown.iter().any(replicated) {
        "micro each"
    } else {
        "micro"
    };
    let mut columns = vec![("runner-up", Align::Left)];
    columns.extend(spread.then_some(("replicas x devices", Align::Right)));
    columns.extend([
        ("chunks", Align::Right),
        (micro, Align::Right),
        ("step", Align::Right),
        ("bubble", Align::Right),
        ("why it loses", Align::Left),
    ]);
    let mut table = Table::new(&columns);
    for &row in &shown {
        table.row(cells(plan, &rows[row], (spread, all)));
    }
    let mut text = table.render_within(width);
    let left = rows.len() - shown.len();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "(work and waiting: of the busiest device)");
    if left > 0 {
        let _ = writeln!(
            text,
            "(these are the best of their kind; plan --explain has {left} more)"
        );
    }
    text
}

fn cells(plan: &Plan, row: &Row<'_>, (spread, all): (bool, bool)) -> Vec<String> {
    let own = row.first;
    let dash = || "-".to_owned();
    let mut cells = vec![names(&row.schedules, all)];
    cells.extend(spread.then(|| format!("{} x {}", own.replicas, own.devices)));
    let bubble = own.bubble_fraction;
    cells.extend([
        own.chunks.to_string(),
        (own.micro_batches / own.replicas.max(1)).to_string(),
        own.step.map_or_else(dash, |step| step.in_column(plan.step)),
        bubble.map_or_else(dash, |bubble| format!("{:.1} %", 100.0 * bubble)),
        own.why_not(plan),
    ]);
    cells
}

/// Returns all names, or one of them, 1F1B before any other.
fn names(schedules: &[ScheduleKind], all: bool) -> String {
    let mut own = schedules.to_vec();
    own.sort_unstable_by_key(|kind| (*kind != ScheduleKind::OneFOneB, *kind));
    let names: Vec<&str> = own.iter().map(|kind| kind.name()).collect();
    match names.first() {
        Some(first) if !all => (*first).to_owned(),
        _ => names.join(", "),
    }
}

fn layout(own: &Alternative) -> (usize, usize) {
    (own.replicas, own.devices)
}

/// Joins alternatives with equal numbers into one row.
fn merged(alternatives: &[Alternative]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for own in alternatives {
        let same = |row: &&mut Row<'_>| is_same(row.first, own);
        match rows.iter_mut().find(same) {
            Some(row) => row.schedules.push(own.schedule),
            None => rows.push(Row {
                first: own,
                schedules: vec![own.schedule],
            }),
        }
    }
    rows
}

fn is_same(a: &Alternative, b: &Alternative) -> bool {
    let key = |own: &Alternative| (layout(own), own.chunks, own.micro_batches, own.recomputing);
    let steps = match (a.step, b.step) {
        (Some(a), Some(b)) => (a.get() - b.get()).abs() <= SAME * a.get(),
        (None, None) => a.reason == b.reason,
        _ => false,
    };
    key(a) == key(b) && a.neighbours == b.neighbours && steps
}

/// Returns the indices of informative rows: the best of each other schedule, each other number of stages per
/// device, each other layout, and with and without recompute; and always 1F1B with one stage per device, the
/// fastest with one stage per device, and the alternatives without a pipeline.
fn telling(plan: &Plan, rows: &[Row<'_>]) -> Vec<usize> {
    let own = (plan.replicas, plan.devices());
    let simple = |row: &Row<'_>| row.first.chunks == 1 && layout(row.first) == own;
    let first = |wanted: &dyn Fn(&Row<'_>) -> bool| {
        rows.iter()
            .position(|row| row.first.step.is_some() && wanted(row))
    };
    let always = [
        first(&simple),
        first(&|row| simple(row) && row.schedules.contains(&ScheduleKind::OneFOneB)),
        rows.iter()
            .position(|row| row.first.devices == 1 && row.first.chunks == 1),
    ];
    let mut chosen: Vec<usize> = always.into_iter().flatten().collect();
    let mut kinds = HashSet::new();
    let new = rows.iter().enumerate().filter(|(_, row)| {
        let other = row.first;
        let here = layout(other) == own;
        // For another layout, or stages that take turns on one device, the best is enough.
        let chunks = (here && other.devices > 1).then_some(other.chunks);
        let name = (here && other.chunks == plan.chunks).then_some(other.schedule);
        let fits = other.step.is_some();
        kinds.insert((layout(other), chunks, name, other.recomputing > 0, fits))
    });
    chosen.extend(new.map(|(index, _)| index));
    let mut seen = HashSet::new();
    chosen.retain(|row| seen.insert(*row));
    chosen.truncate(MOST);
    chosen.sort_unstable();
    chosen
}

/// Says why a pipeline is used, if that is a question: replicas alone would do, one device has several
/// stages, or there is only one micro-batch.
pub(super) fn without_pipeline(plan: &Plan) -> Option<Said> {
    without(plan).map(|text| Said::new("pipeline", text))
}

fn without(plan: &Plan) -> Option<String> {
    let (card, cards) = match plan.tensor_parallel {
        1 => ("device".to_owned(), "devices".to_owned()),
        group => (
            format!("group of {group} cards"),
            format!("groups of {group} cards"),
        ),
    };
    let single = |own: &&Alternative| own.devices == 1 && own.chunks == 1;
    let plain = plan.alternatives.iter().find(single);
    if plan.devices() > 1 {
        let one = (plan.micro_batches_each() == 1).then(|| {
            format!(
                "with one micro-batch the {} of a pipeline work one after the other",
                count(plan.devices(), "device")
            )
        });
        let plain = plain.map(|own| match own.step {
            Some(step) => {
                let all = match own.replicas {
                    1 => "it alone".to_owned(),
                    replicas => format!("{replicas} replicas without a pipeline"),
                };
                format!(
                    "the model fits one {card}: {all} would take {step} a step, {}",
                    own.reason
                )
            }
            None => format!("no {card} holds the whole model: without a pipeline it does not fit"),
        });
        let said: Vec<String> = [plain, one].into_iter().flatten().collect();
        return (!said.is_empty()).then(|| said.join("; "));
    }
    if plan.replicas == 1 {
        return None;
    }
    let replicas = format!("none: each of the {} replicas is one {card}", plan.replicas);
    if plan.chunks == 1 {
        return Some(replicas);
    }
    let stages = format!(
        "{replicas}, whose {} stages take turns, so that the gradients of one are exchanged while \
         others still compute",
        plan.chunks
    );
    let simple = plain.and_then(|own| Some((own.step?, &own.reason)));
    Some(match simple {
        Some((step, reason)) => format!(
            "{stages}; with one stage on each of the {cards} a step would take {step}, {reason}"
        ),
        None => stages,
    })
}
