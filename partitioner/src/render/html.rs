//! The timeline as one self-contained HTML page.

use super::page::{Fact, Page, Table, chart, percent};
use super::svg::svg;
use crate::ids::DeviceId;
use crate::timeline::Timeline;

/// A page with the picture of [`svg`](super::svg()), the details of the action under
/// the pointer, the legend, and a table of each device's busy and idle time. Loads
/// nothing; readable in light and dark and in black and white, by keyboard and by
/// screen reader.
pub fn html(timeline: &Timeline, title: &str) -> String {
    let mut page = Page::new("simulation", title);
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
    page.facts(&facts);
    let mut content = chart("Timeline of the devices", &svg(timeline));
    content.push_str(&devices(timeline));
    page.section("timeline", "Timeline", &content);
    page.finish()
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
