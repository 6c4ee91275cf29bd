//! The timeline as in papers: one column per unit of time.

use super::chunks::Chunks;
use crate::ids::DeviceId;
use crate::timeline::Timeline;
use crate::units::Micros;

/// Draws one row per device and one column per `unit` of time, each with the action that runs in
/// the middle of it, or `A` if the device is idle and gradients are exchanged. The stage is omitted
/// if each device has one. Meant for times that are multiples of `unit`; empty when `unit` is 0 or
/// the grid would have more than a million cells.
pub fn grid(timeline: &Timeline, unit: Micros) -> String {
    let columns = (timeline.makespan().get() / unit.get()).ceil();
    let cells = columns * timeline.devices() as f64;
    if cells.is_nan() || cells > 1e6 {
        return String::new();
    }
    let one_stage = Chunks::new(timeline).one_each();
    let rows: Vec<Vec<String>> = (0..timeline.devices())
        .map(|device| {
            row(
                timeline,
                DeviceId(device),
                unit,
                columns as usize,
                one_stage,
            )
        })
        .collect();
    let width = rows.iter().flatten().map(String::len).max().unwrap_or(1);
    let mut picture = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:>width$}")).collect();
        picture.push_str(&cells.join(" "));
        picture.push('\n');
    }
    picture
}

fn row(
    timeline: &Timeline,
    device: DeviceId,
    unit: Micros,
    columns: usize,
    one_stage: bool,
) -> Vec<String> {
    let mut cells = vec![String::from("."); columns];
    let mut put = |name: &str, start: Micros, end: Micros| {
        let first = (start.get() / unit.get() - 0.5).ceil() as usize;
        let last = (end.get() / unit.get() - 0.5).ceil() as usize;
        let label = if one_stage {
            name.trim_start_matches(|c: char| c.is_ascii_digit())
        } else {
            name
        };
        for cell in cells.iter_mut().take(last).skip(first) {
            label.clone_into(cell);
        }
    };
    // Drawn first: actions cover them.
    for exchange in timeline.exchanges_on(device) {
        put(
            &format!("{}A", exchange.stage),
            exchange.start,
            exchange.end,
        );
    }
    for span in timeline.spans_on(device) {
        put(&span.action.to_string(), span.start, span.end);
    }
    cells
}
