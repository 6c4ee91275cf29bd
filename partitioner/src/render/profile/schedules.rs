//! The plan and its runners-up, side by side.

use super::ProfilePage;
use crate::plan::{Alternative, Plan};
use crate::render::page::{Table, bar, escaped, percent};
use crate::units::{Bytes, Micros};
use std::fmt::Write as _;

/// Further runners-up are folded away.
const SHOWN: usize = 8;

/// One line of the comparison.
struct Line {
    schedule: String,
    /// Number of replicas, and of devices of each.
    layout: (usize, usize),
    chunks: usize,
    micro_batches: usize,
    step: Option<Micros>,
    bubble: Option<f64>,
    peak: Option<Bytes>,
    reason: String,
}

impl Line {
    fn other(plan: &Plan, other: &Alternative) -> Self {
        Self {
            schedule: other.schedule.to_string(),
            layout: (other.replicas, other.devices),
            chunks: other.chunks,
            micro_batches: other.micro_batches,
            step: other.step,
            bubble: other.bubble_fraction,
            peak: other.peak_bytes.iter().copied().max(),
            reason: escaped(&other.why_not(plan)),
        }
    }

    fn chosen(page: &ProfilePage<'_>) -> Self {
        let plan = page.plan;
        Self {
            schedule: plan.schedule.to_string(),
            layout: (plan.replicas, plan.devices()),
            chunks: plan.chunks,
            micro_batches: plan.micro_batches,
            step: Some(plan.step),
            bubble: Some(plan.bubble_fraction),
            peak: Some(page.fullest().1),
            reason: match page.options.machine.devices() {
                devices if devices.iter().any(|own| own.memory.is_some()) => {
                    "the fastest that fits"
                }
                _ => "the fastest",
            }
            .to_owned(),
        }
    }
}

/// Returns the tables.
pub(super) fn section(page: &ProfilePage<'_>) -> String {
    let plan = page.plan;
    let others = plan.alternatives.iter();
    let others: Vec<Line> = others.map(|other| Line::other(plan, other)).collect();
    let chosen = Line::chosen(page);
    let columns = Columns::new(&chosen, &others);
    let (first, rest) = others.split_at(others.len().min(SHOWN));
    let mut html = columns.words(others.is_empty());
    html.push_str(&columns.table("The plan and its runners-up", Some(&chosen), first));
    if !rest.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(
            html,
            "<details><summary>{} more</summary>\n{}</details>\n",
            rest.len(),
            columns.table("Further runners-up", None, rest)
        );
    }
    html
}

/// Columns that exist, and scales of their bars.
struct Columns {
    step: f64,
    /// None if no runner-up has known memory: that of the plan is at the top.
    peak: Option<f64>,
    /// Whether numbers of replicas, or of devices of each, differ.
    layouts: bool,
}

impl Columns {
    fn new(chosen: &Line, others: &[Line]) -> Self {
        let all = || others.iter().chain([chosen]);
        let step = all().filter_map(|line| line.step).max();
        let known = others.is_empty() || others.iter().any(|line| line.peak.is_some());
        let peak = all().filter_map(|line| line.peak).max().filter(|_| known);
        Self {
            step: step.unwrap_or_default().get().max(f64::MIN_POSITIVE),
            peak: peak.map(|peak| peak.get().max(1) as f64),
            layouts: others.iter().any(|line| line.layout != chosen.layout),
        }
    }

    /// Describes the compared plans.
    fn words(&self, alone: bool) -> String {
        if alone {
            let none = "Schedule and micro-batches were given: there is nothing to compare with.";
            return format!("<p>{none}</p>\n");
        }
        let what = if self.layouts {
            "Other schedules, numbers of chunks (stages a device) and of replicas, with the fastest that \
             were found of each"
        } else {
            "For each schedule and number of chunks (stages a device): the fastest cut and number of \
             micro-batches"
        };
        let bars = match self.peak {
            Some(_) => "Bars of steps and memory are relative to the largest here.",
            None => "Bars of steps are relative to the longest here.",
        };
        format!("<p>{what}. {bars}</p>\n")
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = vec!["schedule"];
        names.extend(self.layouts.then_some("replicas \u{d7} devices"));
        names.extend(["chunks", "micro-batches", "*step", "*bubble"]);
        names.extend(self.peak.map(|_| "*peak memory"));
        names.push("*why");
        names
    }

    fn table(&self, caption: &str, chosen: Option<&Line>, others: &[Line]) -> String {
        let mut table = Table::new(caption, &self.names());
        if let Some(line) = chosen {
            let head = format!(
                "<strong>{}</strong><span class=\"badge\">chosen</span>",
                line.schedule
            );
            table.marked("best", &head, &self.cells(line));
        }
        for line in others {
            table.row(&line.schedule, &self.cells(line));
        }
        format!("<div class=\"rank\">\n{}</div>\n", table.finish())
    }

    fn cells(&self, line: &Line) -> Vec<String> {
        let step = line
            .step
            .map(|step| (step.to_string(), step.get() / self.step));
        let bubble = line.bubble.map(|bubble| (percent(bubble), bubble));
        let (replicas, devices) = line.layout;
        let mut cells = Vec::new();
        cells.extend((self.layouts).then(|| format!("{replicas} \u{d7} {devices}")));
        cells.extend([
            line.chunks.to_string(),
            line.micro_batches.to_string(),
            amount("F", step),
            amount("S", bubble),
        ]);
        cells.extend(self.peak.map(|most| {
            let peak = line.peak;
            let peak = peak.map(|peak| (peak.to_string(), peak.get() as f64 / most));
            amount("A", peak)
        }));
        cells.push(format!("*{}", line.reason));
        cells
    }
}

/// Formats a number with its bar.
fn amount(class: &str, amount: Option<(String, f64)>) -> String {
    match amount {
        Some((number, share)) => format!("*{number}{}", bar(&[(class, share)])),
        None => "*\u{2013}".to_owned(),
    }
}
