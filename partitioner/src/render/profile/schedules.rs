//! The plan and its runners-up, side by side.

use super::ProfilePage;
use crate::plan::Alternative;
use crate::render::page::{Table, bar, escaped, percent};
use crate::units::{Bytes, Micros};
use std::fmt::Write as _;

/// Runners-up beyond these are folded away.
const SHOWN: usize = 8;

/// One line of the comparison.
struct Line {
    schedule: String,
    chunks: usize,
    micro_batches: usize,
    step: Option<Micros>,
    bubble: Option<f64>,
    peak: Option<Bytes>,
    reason: String,
}

impl Line {
    fn other(other: &Alternative) -> Self {
        Self {
            schedule: other.schedule.to_string(),
            chunks: other.chunks,
            micro_batches: other.micro_batches,
            step: other.step,
            bubble: other.bubble_fraction,
            peak: other.peak_bytes.iter().copied().max(),
            reason: escaped(&other.reason),
        }
    }

    fn chosen(page: &ProfilePage<'_>) -> Self {
        let plan = page.plan;
        Self {
            schedule: plan.schedule.to_string(),
            chunks: plan.chunks,
            micro_batches: plan.micro_batches,
            step: Some(plan.step),
            bubble: Some(plan.bubble_fraction),
            peak: Some(page.fullest().1),
            reason: "the fastest that fits".to_owned(),
        }
    }
}

/// The tables.
pub(super) fn section(page: &ProfilePage<'_>) -> String {
    let others: Vec<Line> = page.plan.alternatives.iter().map(Line::other).collect();
    let chosen = Line::chosen(page);
    let scale = Scale::new(others.iter().chain([&chosen]));
    let (first, rest) = others.split_at(others.len().min(SHOWN));
    let mut html = String::from(if others.is_empty() {
        "<p>Schedule and micro-batches were given: there is nothing to compare with.</p>\n"
    } else {
        "<p>For each schedule and number of stages a device: the fastest cut and number of \
         micro-batches. Bars of steps and memory are relative to the largest here.</p>\n"
    });
    html.push_str(&scale.table("The plan and its runners-up", Some(&chosen), first));
    if !rest.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(
            html,
            "<details><summary>{} more</summary>\n{}</details>\n",
            rest.len(),
            scale.table("Further runners-up", None, rest)
        );
    }
    html
}

/// What the longest bars stand for.
struct Scale {
    step: f64,
    peak: f64,
}

impl Scale {
    fn new<'a>(lines: impl Iterator<Item = &'a Line> + Clone) -> Self {
        let step = lines.clone().filter_map(|line| line.step).max();
        let peak = lines.filter_map(|line| line.peak).max();
        Self {
            step: step.unwrap_or_default().get().max(f64::MIN_POSITIVE),
            peak: peak.unwrap_or_default().get().max(1) as f64,
        }
    }

    fn table(&self, caption: &str, chosen: Option<&Line>, others: &[Line]) -> String {
        let columns = [
            "schedule",
            "stages a device",
            "micro-batches",
            "*step",
            "*bubble",
            "*peak memory",
            "*why",
        ];
        let mut table = Table::new(caption, &columns);
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

    fn cells(&self, line: &Line) -> [String; 6] {
        let step = line
            .step
            .map(|step| (step.to_string(), step.get() / self.step));
        let bubble = line.bubble.map(|bubble| (percent(bubble), bubble));
        let peak = line
            .peak
            .map(|peak| (peak.to_string(), peak.get() as f64 / self.peak));
        [
            line.chunks.to_string(),
            line.micro_batches.to_string(),
            amount("F", step),
            amount("S", bubble),
            amount("A", peak),
            format!("*{}", line.reason),
        ]
    }
}

/// A number with its bar.
fn amount(class: &str, amount: Option<(String, f64)>) -> String {
    match amount {
        Some((number, share)) => format!("*{number}{}", bar(&[(class, share)])),
        None => "*\u{2013}".to_owned(),
    }
}
