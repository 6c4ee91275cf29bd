//! The timeline as an SVG picture.

pub(super) mod canvas;
pub(super) mod legend;
mod look;
mod names;

use crate::ids::DeviceId;
use crate::render::page::escaped;
use crate::timeline::Timeline;
use crate::units::Micros;
use canvas::{BELOW_LEGEND, BOTTOM, Canvas, MARGIN, RIGHT, ROW, TOP, WIDTH, described, times};
use legend::Legend;
use std::fmt::Write as _;

#[cfg(test)]
pub(super) use look::light;

/// Height of a title in pixels.
const HEADING: f64 = 24.0;

/// Draws one row per device, one bar per action; each bar shows its action when pointed at. Below: the time
/// axis, the legend, and the bubble. A document of its own, without scripts.
///
/// # Complexity
/// Linear in the number of spans, about 200 bytes each.
pub fn svg(timeline: &Timeline) -> String {
    in_a_row_svg(timeline, 1, "")
}

/// Same as `svg` for `steps` steps in a row without barriers
/// ([`Schedule::in_a_row`](crate::Schedule::in_a_row)), with a title above it, such as the schedule's name;
/// an empty title is omitted.
pub fn in_a_row_svg(timeline: &Timeline, steps: usize, title: &str) -> String {
    let top = if title.is_empty() { 0.0 } else { -HEADING };
    let (mut canvas, legend) = begin(timeline, top);
    if !title.is_empty() {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            canvas.svg,
            "<text x=\"6\" y=\"-4\" font-size=\"15\" font-weight=\"bold\">{}</text>",
            escaped(title)
        );
    }
    legend.draw(&mut canvas.svg, MARGIN..WIDTH - RIGHT);
    let _ = writeln!(
        canvas.svg,
        "<text x=\"{}\" y=\"19\" text-anchor=\"end\">{} {}, bubble {:.1} %</text>",
        WIDTH - RIGHT,
        match steps {
            1 => "step".to_owned(),
            _ => format!("{steps} steps"),
        },
        timeline.makespan(),
        100.0 * timeline.bubble_fraction()
    );
    rows(canvas, timeline, timeline.makespan(), steps)
}

/// Returns the legend, and the picture without it, for a page that shows the step and the bubble itself.
pub(super) fn in_a_page(timeline: &Timeline) -> String {
    in_a_row_in_a_page(timeline, 1)
}

/// Same for `steps` steps in a row, with a line where each device begins a step, and the step of each action.
pub(super) fn in_a_row_in_a_page(timeline: &Timeline, steps: usize) -> String {
    let (canvas, legend) = begin(timeline, BELOW_LEGEND);
    legend.html() + &rows(canvas, timeline, timeline.makespan(), steps)
}

/// Same with a time axis that ends no earlier than `end`, and a line at this timeline's end.
pub(super) fn in_a_page_until(timeline: &Timeline, end: Micros) -> String {
    let end = end.max(timeline.makespan());
    let (canvas, legend) = begin_until(timeline, BELOW_LEGEND, end);
    legend.html() + &rows(canvas, timeline, end, 1)
}

fn begin(timeline: &Timeline, top: f64) -> (Canvas, Legend) {
    begin_until(timeline, top, timeline.makespan())
}

fn begin_until(timeline: &Timeline, top: f64, end: Micros) -> (Canvas, Legend) {
    let heights = top..bottom(timeline) + BOTTOM;
    let spans = timeline.spans().len();
    let words = words(timeline);
    let mut canvas = Canvas::new(heights, end, spans, "pipeline timeline", &words);
    let legend = canvas.explain(&[timeline]);
    (canvas, legend)
}

/// Bottom of the rows.
fn bottom(timeline: &Timeline) -> f64 {
    TOP + ROW * timeline.devices() as f64
}

fn rows(mut canvas: Canvas, timeline: &Timeline, end: Micros, steps: usize) -> String {
    let highest = timeline
        .spans()
        .iter()
        .map(|span| span.action.micro.index());
    // Micro-batches are numbered through all steps.
    let each = highest
        .max()
        .map_or(1, |last| (last + 1).div_ceil(steps.max(1)));
    for device in (0..timeline.devices()).map(DeviceId) {
        let y = TOP + ROW * device.index() as f64;
        canvas.lane(device, y, timeline.makespan());
        for exchange in timeline.exchanges_on(device) {
            canvas.exchange(exchange, y);
        }
        for span in timeline.spans_on(device) {
            let of = match steps {
                0 | 1 => String::new(),
                _ => {
                    let micro = span.action.micro.index();
                    format!(" (number {} of step {})", micro % each, micro / each)
                }
            };
            let title = format!("{}{of}\n{}", described(span), times(span));
            canvas.bar(span, y, &title);
        }
        for step in 1..steps {
            let mut spans = timeline.spans_on(device).iter();
            let first = spans.find(|span| span.action.micro.index() >= step * each);
            if let Some(first) = first {
                canvas.end_at(first.start, y, 1);
            }
        }
    }
    if end > timeline.makespan() {
        canvas.end_at(timeline.makespan(), TOP, timeline.devices());
    }
    canvas.axis(bottom(timeline));
    canvas.finish()
}

/// Describes a timeline for readers who cannot see it.
pub(super) fn words(timeline: &Timeline) -> String {
    let share = |device| 100.0 * timeline.busy(device).get() / timeline.makespan().get().max(1e-9);
    let devices = (0..timeline.devices()).map(DeviceId);
    let busy: Vec<String> = devices
        .map(|device| format!("device {device} works {:.0} % of the time", share(device)))
        .collect();
    let exposed = timeline.exposed();
    let exchange = if exposed > Micros::ZERO {
        format!(" For the last {exposed} gradients are exchanged and nothing else is done.")
    } else {
        String::new()
    };
    format!(
        "One row a device, time from left to right, {}: {}.{exchange}",
        timeline.makespan(),
        busy.join(", ")
    )
}
