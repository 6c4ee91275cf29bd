//! Schedules side by side, as a page.

use super::page::{Fact, Page, Table, bar, chart, escaped, percent};
use super::svg::in_a_page;
use crate::simulate::Simulation;
use crate::units::{Bytes, Micros};
use std::fmt::Write as _;

/// Actions of all pictures of a page together, at most: more are hardly opened by a browser.
const MOST_ACTIONS: usize = 50_000;

/// A schedule among others.
#[derive(Clone, Debug)]
pub struct Compared<'a> {
    /// What it is called.
    pub name: String,
    /// What it is predicted to do.
    pub simulation: &'a Simulation,
    /// What is to be said of it, if anything: that it does not fit, say.
    pub note: String,
}

/// A page of schedules in this order, the first being the best: a table with bars, the timeline of
/// the first, and below it those of the others, folded away. Pictures end where there would be too
/// many actions. Loads nothing; readable in light and dark and by screen reader, as
/// [`html`](super::html()) is.
pub fn schedules_html(schedules: &[Compared<'_>], title: &str) -> String {
    let mut page = Page::new("comparison of schedules", title);
    let Some((best, others)) = schedules.split_first() else {
        return page.finish();
    };
    let timeline = &best.simulation.timeline;
    page.facts(&[
        Fact::new(rank(best), escaped(&best.name), escaped(&best.note)),
        Fact::new("Step", timeline.makespan().to_string(), String::new()),
        super::html::bubble(timeline.bubble_fraction()),
    ]);
    page.section("schedules", "Schedules", &table(schedules));
    let mut room = MOST_ACTIONS.saturating_sub(timeline.spans().len());
    let label = format!("Timeline of {}", escaped(&best.name));
    let best = chart(&label, &in_a_page(timeline));
    page.section("timeline", "Timeline of the first", &best);
    let mut pictures = String::new();
    for other in others {
        let timeline = &other.simulation.timeline;
        let Some(left) = room.checked_sub(timeline.spans().len()) else {
            continue;
        };
        room = left;
        // Writing to a String cannot fail.
        let _ = write!(
            pictures,
            "<details><summary>{}: {}</summary>\n<div class=\"chart\">\n{}</div>\n</details>\n",
            escaped(&other.name),
            timeline.makespan(),
            in_a_page(timeline)
        );
    }
    if !pictures.is_empty() {
        page.section("others", "Timelines of the others", &pictures);
    }
    page.finish()
}

/// Of one that does not fit, say, nothing is the best.
fn rank(first: &Compared<'_>) -> &'static str {
    if first.note.is_empty() {
        "Best"
    } else {
        "First"
    }
}

fn table(schedules: &[Compared<'_>]) -> String {
    let notes = schedules.iter().any(|own| !own.note.is_empty());
    let mut columns = vec!["schedule", "chunks", "*step", "*bubble", "*peak memory"];
    columns.extend(notes.then_some("*note"));
    let mut table = Table::new("Schedules, the best first", &columns);
    let peak = |own: &Compared<'_>| own.simulation.peak_bytes().into_iter().max();
    let peaks: Vec<Bytes> = schedules.iter().filter_map(peak).collect();
    let most = peaks.iter().max().copied().unwrap_or_default();
    let steps = schedules.iter().map(|own| own.simulation.makespan());
    let longest = steps.max().unwrap_or(Micros::ZERO);
    for (place, own) in schedules.iter().enumerate() {
        let timeline = &own.simulation.timeline;
        let schedule = own.simulation.schedule().schedule();
        let (step, idle) = (timeline.makespan(), timeline.bubble_fraction());
        let peak = peak(own).unwrap_or_default();
        let peak = if most == Bytes::ZERO {
            "*\u{2013}".to_owned()
        } else {
            let share = peak.get() as f64 / most.get() as f64;
            format!("*{peak}{}", bar(&[("A", share)]))
        };
        let share = step.get() / longest.get().max(f64::MIN_POSITIVE);
        let mut cells = vec![
            (schedule.stages() / schedule.devices().max(1)).to_string(),
            format!("*{step}{}", bar(&[("F", share)])),
            format!("*{}{}", percent(idle), bar(&[("S", idle)])),
            peak,
        ];
        cells.extend(notes.then(|| format!("*{}", escaped(&own.note))));
        let is_best = place == 0 && own.note.is_empty();
        let class = if is_best { "best" } else { "" };
        table.marked(class, &escaped(&own.name), &cells);
    }
    format!("<div class=\"rank\">\n{}</div>\n", table.finish())
}
