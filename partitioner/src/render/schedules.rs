//! Comparison of schedules as a page.

use super::html::in_flight;
use super::page::{
    Fact, Page, Table, another_chart, bar, bar_with_mark, capital, chart, escaped, percent,
    sentence,
};
use super::svg::in_a_page_until;
use crate::simulate::Simulation;
use crate::units::{Bytes, Micros};
use crate::words::two_decimals;
use std::fmt::Write as _;

/// Most actions in all pictures of a page: browsers hardly open more.
const MOST_ACTIONS: usize = 50_000;

const ONE_AXIS: &str =
    "All timelines of this page have one time axis; a dashed line is where a step ends.";

/// A schedule of the comparison.
#[derive(Clone, Debug)]
pub struct Compared<'a> {
    /// Name of the schedule.
    pub name: String,
    /// Prediction for the schedule.
    pub simulation: &'a Simulation,
    /// Note, if any, such as that it does not fit.
    pub note: String,
    /// Whether it fits the memory; true if not asked for.
    pub fits: bool,
    /// Whether it is the best, or equally good.
    pub is_best: bool,
    /// Further numbers, each with the name of its column; the same columns for all schedules.
    pub more: Vec<(&'static str, String)>,
}

/// HTML page that compares schedules.
#[derive(Clone, Debug)]
pub struct SchedulesPage<'a> {
    /// Title: the compared setting.
    pub title: String,
    /// The schedules, in this order.
    pub schedules: Vec<Compared<'a>>,
    /// Memory limit of every device, if any.
    pub limit: Option<Bytes>,
    /// Description of the order, such as `the fastest first`.
    pub order: &'static str,
    /// Description of the best, such as `the fastest`.
    pub best: &'static str,
    /// Reasons why other schedules are missing, a sentence each.
    pub refused: Vec<String>,
    /// Explanations of the numbers, such as the times they are based on.
    pub notes: Vec<String>,
}

impl SchedulesPage<'_> {
    /// Returns the page: a table with bars, the timeline of the first schedule, and below it those of the
    /// others, folded away. Pictures stop at the limit of actions. Loads nothing; readable in light and dark
    /// and by screen reader, like [`html`](super::html()).
    pub fn html(&self) -> String {
        let mut page = Page::new("comparison of schedules", &self.title);
        let Some(first) = self.schedules.first() else {
            return page.finish();
        };
        let timeline = &first.simulation.timeline;
        let more = first.more.first();
        let more = more.map_or_else(String::new, |(name, cell)| {
            format!("{name} {}", escaped(cell))
        });
        page.facts(&[
            self.first(first),
            Fact::new("Step", timeline.makespan().to_string(), more),
            super::html::bubble(timeline.bubble_fraction()),
        ]);
        page.notes(&[], &self.notes);
        page.section("schedules", "Schedules", &self.table());
        let end = Columns::new(self).longest;
        let label = format!("Timeline of {}", escaped(&first.name));
        let picture = format!("<p class=\"hint\">{ONE_AXIS}</p>\n")
            + &chart(&label, &in_a_page_until(timeline, end));
        page.section("timeline", "Timeline of the first", &picture);
        let room = MOST_ACTIONS.saturating_sub(timeline.spans().len());
        let pictures = pictures(&self.schedules, room, end);
        if !pictures.is_empty() {
            page.section("others", "Timelines of the others", &pictures);
        }
        if !self.refused.is_empty() {
            let refused = self.refused.iter();
            let refused = refused.map(|why| format!("<p>{}</p>\n", sentence(why)));
            let refused: String = refused.collect();
            page.section("refused", "Not for these numbers", &refused);
        }
        page.finish()
    }

    fn table(&self) -> String {
        let columns = Columns::new(self);
        let caption = capital(self.order);
        let mut table = Table::new(&caption, &columns.names());
        for own in &self.schedules {
            let class = match (own.is_best, own.fits) {
                (true, _) => "best",
                (false, true) => "",
                (false, false) => "misfit",
            };
            table.marked(class, &head(own), &columns.cells(own));
        }
        let hint = columns.limit.map_or_else(String::new, |limit| {
            format!(
                "<p class=\"hint\">The line across the bars of memory is the limit: {limit}.</p>\n"
            )
        });
        format!("<div class=\"rank\">\n{}{hint}</div>\n", table.finish())
    }

    /// Returns the first schedule, with equally good ones; one that does not fit is not called the best.
    fn first(&self, first: &Compared<'_>) -> Fact {
        if !first.is_best {
            return Fact::new("First", escaped(&first.name), escaped(&first.note));
        }
        let others = self.schedules.iter().skip(1).filter(|own| own.is_best);
        let others: Vec<&str> = others.map(|own| own.name.as_str()).collect();
        let note = match others.as_slice() {
            [] => String::new(),
            others => format!("as fast: {}", escaped(&others.join(", "))),
        };
        Fact::new(capital(self.best), escaped(&first.name), note)
    }
}

/// Draws timelines of all but the first, folded away, with at most `room` actions together. Of equal ones,
/// such as `auto` and the schedule that it takes, one is drawn.
fn pictures(schedules: &[Compared<'_>], mut room: usize, end: Micros) -> String {
    let mut pictures = String::new();
    for (place, own) in schedules.iter().enumerate().skip(1) {
        let timeline = &own.simulation.timeline;
        let mut before = schedules[..place].iter();
        if let Some(same) = before.find(|other| other.simulation.timeline == *timeline) {
            let (name, same) = (escaped(&own.name), escaped(&same.name));
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(pictures, "<p>{name}: the timeline of {same}.</p>");
            continue;
        }
        let Some(left) = room.checked_sub(timeline.spans().len()) else {
            continue;
        };
        room = left;
        let name = escaped(&own.name);
        let _ = write!(
            pictures,
            "<details><summary>{name}: {}</summary>\n{}</details>\n",
            timeline.makespan(),
            another_chart(
                &format!("Timeline of {name}"),
                &in_a_page_until(timeline, end)
            )
        );
    }
    pictures
}

/// Returns the name, with the note below it.
fn head(own: &Compared<'_>) -> String {
    let name = escaped(&own.name);
    match own.note.as_str() {
        "" => name,
        note => format!("{name}<span class=\"note\">{}</span>", escaped(note)),
    }
}

/// Columns that exist, and scales of their bars.
struct Columns {
    longest: Micros,
    /// The highest peak or the limit; none if memory is unknown.
    fullest: Option<Bytes>,
    limit: Option<Bytes>,
    more: Vec<&'static str>,
}

impl Columns {
    fn new(page: &SchedulesPage<'_>) -> Self {
        let schedules = page.schedules.as_slice();
        let steps = schedules.iter().map(|own| own.simulation.makespan());
        let more = schedules.first().map(|own| own.more.as_slice());
        let peaks = schedules.iter().map(peak).max();
        let peaks = peaks.filter(|own| *own > Bytes::ZERO);
        let limit = page.limit.filter(|_| peaks.is_some());
        Self {
            longest: steps.max().unwrap_or(Micros::ZERO),
            fullest: peaks.max(limit),
            limit,
            more: more
                .unwrap_or_default()
                .iter()
                .map(|(name, _)| *name)
                .collect(),
        }
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = vec!["schedule", "chunks", "*step", "*bubble", "in flight"];
        names.extend(self.fullest.map(|_| "*peak memory"));
        names.extend(&self.more);
        names
    }

    fn cells(&self, own: &Compared<'_>) -> Vec<String> {
        let timeline = &own.simulation.timeline;
        let schedule = own.simulation.schedule().schedule();
        let (step, idle) = (timeline.makespan(), timeline.bubble_fraction());
        let share = step.get() / self.longest.get().max(f64::MIN_POSITIVE);
        let mut cells = vec![
            (schedule.stages() / schedule.devices().max(1)).to_string(),
            format!("*{}{}", step.in_column(self.longest), bar(&[("F", share)])),
            format!("*{}{}", percent(idle), bar(&[("S", idle)])),
            two_decimals(in_flight(own.simulation).into_iter().fold(0.0, f64::max)),
        ];
        cells.extend(self.fullest.map(|most| {
            let peak = peak(own);
            let share = |bytes: Bytes| bytes.get() as f64 / most.get() as f64;
            let bar = bar_with_mark(&[("A", share(peak))], self.limit.map(share));
            format!("*{peak}{bar}")
        }));
        cells.extend(own.more.iter().map(|(_, cell)| escaped(cell)));
        cells
    }
}

/// Returns the peak of the fullest device.
fn peak(own: &Compared<'_>) -> Bytes {
    let peaks = own.simulation.peak_bytes().into_iter();
    peaks.max().unwrap_or_default()
}
