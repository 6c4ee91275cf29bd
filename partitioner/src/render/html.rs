//! The timeline as one self-contained HTML page.

use super::memory::{self, Curve};
use super::page::{Fact, Page, Table, chart, percent};
use super::svg;
use crate::ids::DeviceId;
use crate::simulate::Simulation;
use crate::timeline::{Span, Timeline};
use crate::units::{Bytes, Micros};
use std::cmp::Reverse;

/// A page with the picture of [`svg`](super::svg()), the details of the action under
/// the pointer, the legend, and a table of each device's busy and idle time. The time axis can be
/// stretched. Loads nothing; readable in light and dark and in black and white, by keyboard and by
/// screen reader.
pub fn html(timeline: &Timeline, title: &str) -> String {
    let mut page = Page::new("simulation", title);
    page.facts(&facts(timeline, 1));
    page.section("timeline", "Timeline", &section(timeline));
    page.finish()
}

/// The page of [`html`] with the memory of each device over the step, where the costs tell any.
pub fn simulation_html(simulation: &Simulation, title: &str) -> String {
    in_a_row_html(simulation, title, 1)
}

/// The same of so many steps in a row, of which none waits for the one before
/// ([`Schedule::in_a_row`](crate::Schedule::in_a_row)).
pub fn in_a_row_html(simulation: &Simulation, title: &str, steps: usize) -> String {
    let timeline = &simulation.timeline;
    let peaks = simulation.peak_bytes();
    let fullest = (peaks.iter().zip(0..)).max_by_key(|&(peak, device)| (*peak, Reverse(device)));
    let mut page = Page::new("simulation", title);
    let mut facts = facts(timeline, steps);
    let Some((peak, device)) = fullest.filter(|(peak, _)| **peak > Bytes::ZERO) else {
        page.facts(&facts);
        page.section("timeline", "Timeline", &section(timeline));
        return page.finish();
    };
    let note = format!("on device {device}");
    facts.push(Fact::new("Peak memory", peak.to_string(), note));
    page.facts(&facts);
    page.section("timeline", "Timeline", &section(timeline));
    let devices = (0..peaks.len()).map(DeviceId);
    let curves: Vec<Curve> = devices
        .map(|device| Curve::new(simulation, device))
        .collect();
    let words = "What the stages of a device hold over the step: activations of micro-batches from their \
                 forward to their backward, on top of what is there all the time, where that is known.";
    let memory = memory::section(curves, timeline.makespan(), words);
    page.section("memory", "Memory over time", &memory);
    page.finish()
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
        Fact::new(
            "Actions",
            timeline.spans().len().to_string(),
            format!("on {} devices", timeline.devices()),
        ),
    ];
    let steady = timeline.steady_bubble(steps).filter(|_| steps > 1);
    let note = || "device time that is idle between the first step and the last".to_owned();
    facts.extend(steady.map(|share| Fact::new("Bubble, steady", percent(share), note())));
    facts.extend(exposed(timeline));
    facts
}

fn section(timeline: &Timeline) -> String {
    chart("Timeline of the devices", &svg::in_a_page(timeline)) + &devices(timeline)
}

/// How much of the exchanges of gradients comes on top of the actions, where there are any.
pub(super) fn exposed(timeline: &Timeline) -> Option<Fact> {
    let note = "after the last action, of the step".to_owned();
    let fact = Fact::new("Exposed all-reduce", timeline.exposed().to_string(), note);
    (!timeline.exchanges().is_empty()).then_some(fact)
}

/// How long a device does nothing but exchange gradients.
fn exposed_on(timeline: &Timeline, device: DeviceId) -> Micros {
    let spans = timeline.spans_on(device);
    let mut exchanges: Vec<(Micros, Micros)> = timeline
        .exchanges_on(device)
        .map(|own| (own.start, own.end))
        .collect();
    exchanges.sort();
    let (mut alone, mut done) = (Micros::ZERO, Micros::ZERO);
    for (start, end) in exchanges {
        // Those of several stages may be at the same time.
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

/// The idle share as a fact.
pub(super) fn bubble(share: f64) -> Fact {
    let note = "device time that is idle".to_owned();
    Fact::new("Bubble", percent(share), note)
}

/// Each device's busy and idle time.
pub(super) fn devices(timeline: &Timeline) -> String {
    let exchanges = !timeline.exchanges().is_empty();
    let mut columns = vec!["device", "busy", "idle", "idle within", "busy share"];
    if exchanges {
        columns.insert(3, "of it in the all-reduce");
    }
    let mut table = Table::new("Each device\u{2019}s time", &columns);
    let step = timeline.makespan().get().max(f64::MIN_POSITIVE);
    for device in (0..timeline.devices()).map(DeviceId) {
        let busy = timeline.busy(device);
        let mut cells = vec![
            busy.to_string(),
            timeline.idle(device).to_string(),
            timeline.idle_within(device).to_string(),
            percent(busy.get() / step),
        ];
        if exchanges {
            cells.insert(2, exposed_on(timeline, device).to_string());
        }
        table.row(&device.to_string(), &cells);
    }
    table.finish()
}
