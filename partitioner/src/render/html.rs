//! The timeline as one self-contained HTML page.

use super::memory::{self, Curve};
use super::page::{Fact, Page, Table, below, chart, percent};
use super::svg;
use crate::ids::DeviceId;
use crate::simulate::Simulation;
use crate::timeline::{Span, Timeline};
use crate::units::{Bytes, Micros};
use crate::words::{count, two_decimals};
use std::cmp::Reverse;

/// Returns a page with the picture of [`svg`](super::svg()), the details of the action under the
/// pointer, the legend, and a table of each device's busy and idle time. The time axis can be
/// stretched. Loads nothing; readable in light and dark and in black and white, by keyboard and by
/// screen reader.
pub fn html(timeline: &Timeline, title: &str) -> String {
    let mut page = Page::new("simulation", title);
    let mut facts = facts(timeline, 1);
    facts.insert(2, actions(timeline));
    page.facts(&facts);
    let picture = picture(timeline, 1);
    page.section(
        "timeline",
        "Timeline",
        &(picture + &devices(timeline, None)),
    );
    page.finish()
}

/// HTML page about a simulation: that of [`html`] with notes, the micro-batches in flight, and the
/// memory of each device over the step, if the costs have any.
#[derive(Clone, Debug)]
pub struct SimulationPage<'a> {
    simulation: &'a Simulation,
    title: String,
    steps: usize,
    limits: Vec<Option<Bytes>>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> SimulationPage<'a> {
    /// Creates a page about one step.
    pub fn new(simulation: &'a Simulation, title: &str) -> Self {
        Self {
            simulation,
            title: title.to_owned(),
            steps: 1,
            limits: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Sets the number of steps in a row, without barriers
    /// ([`Schedule::in_a_row`](crate::Schedule::in_a_row)).
    #[must_use]
    pub fn with_steps(mut self, steps: usize) -> Self {
        self.steps = steps;
        self
    }

    /// Adds the memory of each device, if known.
    #[must_use]
    pub fn with_limits(mut self, limits: &[Option<Bytes>]) -> Self {
        self.limits = limits.to_vec();
        self
    }

    /// Adds sentences that explain the numbers.
    #[must_use]
    pub fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.notes = notes;
        self
    }

    /// Adds sentences about problems: they stand out.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// Returns the whole page. Loads nothing, and is as readable as that of [`html`].
    pub fn html(&self) -> String {
        let timeline = &self.simulation.timeline;
        let mut page = Page::new("simulation", &self.title);
        let mut facts = facts(timeline, self.steps);
        let in_flight = in_flight(self.simulation);
        facts.insert(2, most_in_flight(&in_flight));
        let peaks = self.simulation.peak_bytes();
        let known = peaks.iter().any(|peak| *peak > Bytes::ZERO);
        facts.extend(known.then(|| peak_memory(&peaks, |device| self.limit(device))));
        page.facts(&facts);
        page.notes(&self.warnings, &self.notes);
        let devices = devices(timeline, Some(&in_flight));
        page.section(
            "timeline",
            "Timeline",
            &(picture(timeline, self.steps) + &devices),
        );
        if known {
            page.section("memory", "Memory over time", &self.memory());
        }
        page.finish()
    }

    fn limit(&self, device: DeviceId) -> Option<Bytes> {
        self.limits.get(device.index()).copied().flatten()
    }

    fn memory(&self) -> String {
        let timeline = &self.simulation.timeline;
        let curve = |device: DeviceId| Curve {
            limit: self.limit(device),
            ..Curve::new(self.simulation, device)
        };
        let curves = (0..timeline.devices()).map(DeviceId).map(curve).collect();
        let words = "What the stages of a device hold over the step: activations of micro-batches from \
                     their forward to their backward, on top of what is there all the time, where that \
                     is known.";
        memory::section(curves, timeline.makespan(), words)
    }
}

/// Returns the most micro-batches in flight on each device.
pub(super) fn in_flight(simulation: &Simulation) -> Vec<f64> {
    let schedule = simulation.schedule();
    let devices = (0..schedule.schedule().devices()).map(DeviceId);
    let each = devices.map(|device| schedule.peak_in_flight_on(device));
    each.collect()
}

/// Returns the highest peak, the first among equals, with its share of the device's memory.
pub(super) fn peak_memory(peaks: &[Bytes], limit: impl Fn(DeviceId) -> Option<Bytes>) -> Fact {
    let fullest = (0..peaks.len()).max_by_key(|&device| (peaks[device], Reverse(device)));
    let device = fullest.unwrap_or_default();
    let peak = peaks.get(device).copied().unwrap_or_default();
    let of = limit(DeviceId(device)).map_or_else(String::new, |limit| {
        let share = percent(peak.get() as f64 / limit.get().max(1) as f64);
        format!(", {share} of its {limit}")
    });
    let every = peaks.iter().all(|own| *own == peak);
    let note = format!("{}{of}", place(device, every));
    Fact::new("Peak memory", peak.to_string(), note)
}

fn facts(timeline: &Timeline, steps: usize) -> Vec<Fact> {
    let step = timeline.makespan() * (1.0 / steps.max(1) as f64);
    let note = match steps {
        1 => String::new(),
        _ => format!("of {steps} in a row, which take {}", timeline.makespan()),
    };
    let mut facts = vec![
        Fact::new("Step", step.to_string(), note),
        if timeline.exchanges().is_empty() {
            bubble(timeline.bubble_fraction())
        } else {
            let note = "device time without an action, the all-reduce\u{2019}s included".to_owned();
            Fact::new("Bubble", percent(timeline.bubble_fraction()), note)
        },
    ];
    let steady = timeline.steady_bubble(steps).filter(|_| steps > 1);
    let note = || "device time that is idle between the first step and the last".to_owned();
    facts.extend(steady.map(|share| Fact::new("Bubble, steady", percent(share), note())));
    facts.extend(exposed(timeline));
    facts
}

fn actions(timeline: &Timeline) -> Fact {
    let devices = count(timeline.devices(), "device");
    let actions = timeline.spans().len();
    Fact::new("Actions", actions.to_string(), format!("on {devices}"))
}

/// Returns the device with the most micro-batches in flight, the first among equals.
fn most_in_flight(in_flight: &[f64]) -> Fact {
    let devices = 0..in_flight.len();
    let most = devices.max_by(|&a, &b| in_flight[a].total_cmp(&in_flight[b]).then(b.cmp(&a)));
    let device = most.unwrap_or_default();
    let most = in_flight.get(device).copied().unwrap_or_default();
    let every = in_flight.iter().all(|own| own.total_cmp(&most).is_eq());
    let note = format!("micro-batches at most, {}", place(device, every));
    Fact::new("In flight", two_decimals(most), note)
}

/// Describes the place of a maximum: one of several devices, or `every` one.
fn place(device: usize, every: bool) -> String {
    if every {
        "on every device".to_owned()
    } else {
        format!("on device {device}")
    }
}

fn picture(timeline: &Timeline, steps: usize) -> String {
    let hint = match steps {
        0 | 1 => "",
        _ => "<p class=\"hint\">A dashed line is where a device begins a step.</p>\n",
    };
    hint.to_owned()
        + &chart(
            "Timeline of the devices",
            &svg::in_a_row_in_a_page(timeline, steps),
        )
}

/// Returns the part of the exchanges that follows the actions, if there are any.
pub(super) fn exposed(timeline: &Timeline) -> Option<Fact> {
    let note = "of the step, after the last action".to_owned();
    let fact = Fact::new("Exposed all-reduce", timeline.exposed().to_string(), note);
    (!timeline.exchanges().is_empty()).then_some(fact)
}

/// Returns how long a device only exchanges gradients.
fn exposed_on(timeline: &Timeline, device: DeviceId) -> Micros {
    let spans = timeline.spans_on(device);
    let mut exchanges: Vec<(Micros, Micros)> = timeline
        .exchanges_on(device)
        .map(|own| (own.start, own.end))
        .collect();
    exchanges.sort();
    let (mut alone, mut done) = (Micros::ZERO, Micros::ZERO);
    for (start, end) in exchanges {
        // Exchanges of several stages may overlap.
        let start = start.max(done);
        if end > start {
            let during =
                |span: &Span| span.end.min(end).max(start) - span.start.max(start).min(end);
            alone = alone + (end - start) - spans.iter().map(during).sum();
            done = end;
        }
    }
    alone
}

/// Returns the idle share as a fact.
pub(super) fn bubble(share: f64) -> Fact {
    let note = "device time that is idle".to_owned();
    Fact::new("Bubble", percent(share), note)
}

/// Returns the table of busy and idle time per device, with the micro-batches in flight if known.
pub(super) fn devices(timeline: &Timeline, in_flight: Option<&[f64]>) -> String {
    let exchanges = !timeline.exchanges().is_empty();
    let mut columns = vec![
        "device",
        "busy",
        "idle",
        "idle between its actions",
        "busy share",
    ];
    columns.extend(in_flight.map(|_| "in flight"));
    if exchanges {
        columns.insert(3, "of it in the all-reduce");
    }
    let mut table = Table::new("Each device\u{2019}s time", &columns);
    let step = timeline.makespan().get().max(f64::MIN_POSITIVE);
    let all = || (0..timeline.devices()).map(DeviceId);
    let largest =
        |times: &dyn Fn(DeviceId) -> Micros| all().map(times).max().unwrap_or(Micros::ZERO);
    let longest = [
        largest(&|device| timeline.busy(device)),
        largest(&|device| timeline.idle(device)),
    ];
    for device in all() {
        let busy = timeline.busy(device);
        let mut cells = vec![
            below(busy, longest[0]),
            below(timeline.idle(device), longest[1]),
            below(timeline.idle_within(device), longest[1]),
            percent(busy.get() / step),
        ];
        if exchanges {
            cells.insert(2, below(exposed_on(timeline, device), longest[1]));
        }
        cells.extend(in_flight.and_then(|own| own.get(device.index()).copied().map(two_decimals)));
        table.row(&device.to_string(), &cells);
    }
    table.finish()
}
