//! The timeline as one self-contained HTML page.

use super::memory::{self, Curve};
use super::page::{Fact, Page, Table, chart, percent};
use super::svg::svg;
use crate::ids::DeviceId;
use crate::simulate::Simulation;
use crate::timeline::Timeline;
use crate::units::Bytes;
use std::cmp::Reverse;

/// A page with the picture of [`svg`](super::svg()), the details of the action under
/// the pointer, the legend, and a table of each device's busy and idle time. The time axis can be
/// stretched. Loads nothing; readable in light and dark and in black and white, by keyboard and by
/// screen reader.
pub fn html(timeline: &Timeline, title: &str) -> String {
    let mut page = Page::new("simulation", title);
    page.facts(&facts(timeline));
    page.section("timeline", "Timeline", &section(timeline));
    page.finish()
}

/// The page of [`html`] with the memory of each device over the step, where the costs tell any.
pub fn simulation_html(simulation: &Simulation, title: &str) -> String {
    let timeline = &simulation.timeline;
    let peaks = simulation.peak_bytes();
    let fullest = (peaks.iter().zip(0..)).max_by_key(|&(peak, device)| (*peak, Reverse(device)));
    let Some((peak, device)) = fullest.filter(|(peak, _)| **peak > Bytes::ZERO) else {
        return html(timeline, title);
    };
    let mut page = Page::new("simulation", title);
    let mut facts = facts(timeline);
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

fn facts(timeline: &Timeline) -> Vec<Fact> {
    let mut facts = vec![
        Fact::new("Step", timeline.makespan().to_string(), String::new()),
        bubble(timeline.bubble_fraction()),
        Fact::new(
            "Actions",
            timeline.spans().len().to_string(),
            format!("on {} devices", timeline.devices()),
        ),
    ];
    facts.extend(exposed(timeline));
    facts
}

fn section(timeline: &Timeline) -> String {
    chart("Timeline of the devices", &svg(timeline)) + &devices(timeline)
}

/// How much of the exchanges of gradients comes on top of the actions, where there are any.
pub(super) fn exposed(timeline: &Timeline) -> Option<Fact> {
    let note = "after the last action, of the step".to_owned();
    let fact = Fact::new("Exposed all-reduce", timeline.exposed().to_string(), note);
    (!timeline.exchanges().is_empty()).then_some(fact)
}

/// The idle share as a fact.
pub(super) fn bubble(share: f64) -> Fact {
    let note = "device time that is idle".to_owned();
    Fact::new("Bubble", percent(share), note)
}

/// Each device's busy and idle time.
pub(super) fn devices(timeline: &Timeline) -> String {
    let columns = ["device", "busy", "idle", "idle within", "busy share"];
    let mut table = Table::new("Each device\u{2019}s time", &columns);
    let step = timeline.makespan().get().max(f64::MIN_POSITIVE);
    for device in (0..timeline.devices()).map(DeviceId) {
        let busy = timeline.busy(device);
        table.row(
            &device.to_string(),
            &[
                busy.to_string(),
                timeline.idle(device).to_string(),
                timeline.idle_within(device).to_string(),
                percent(busy.get() / step),
            ],
        );
    }
    table.finish()
}
