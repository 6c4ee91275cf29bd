//! The comparison as one SVG picture.

use super::{both, causes, end, numbers, wrapped};
use crate::explain::{Delta, Explanation};
use crate::ids::DeviceId;
use crate::render::page::escaped;
use crate::render::svg;
use crate::render::svg::canvas::{
    BELOW_LEGEND, BOTTOM, Canvas, MARGIN, RIGHT, ROW, TOP, WIDTH, described, times,
};
use crate::render::svg::legend::Legend;
use crate::schedule::Action;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;

/// Sizes in pixels.
const HEADING: f64 = 20.0;
const LINE: f64 = 17.0;
/// Characters of a line that certainly fit the width.
const COLUMNS: usize = 170;

/// Colours in addition to those of every timeline.
const STYLE: &str = "<style>\
.tl .name{font-weight:bold}\
</style>\n";

/// Draws the measured timeline above the predicted one, on one time axis; below, the causes of the
/// difference and a sentence about it; `what` names the step ("Step 3"). Each bar shows its
/// measured and predicted time when pointed at. A document of its own, without scripts.
///
/// # Complexity
/// Linear in the number of spans, about 300 bytes each.
pub fn compare_svg(explanation: &Explanation, what: &str) -> String {
    let mut words = Vec::new();
    for line in wrapped(&explanation.sentence(what), COLUMNS) {
        words.push(vec![(0.0, line)]);
    }
    for row in causes(explanation) {
        let cells = [row.name, &row.delta, &row.share, row.meaning].map(str::to_owned);
        words.push([0.0, 130.0, 210.0, 280.0].into_iter().zip(cells).collect());
    }
    let axis = axis(explanation);
    let height = axis + BOTTOM + LINE * words.len() as f64;
    let (mut canvas, legend) = begin(explanation, what, 0.0..height);
    legend.draw(&mut canvas.svg, MARGIN..WIDTH - RIGHT);
    rows(&mut canvas, explanation);
    for (line, number) in words.iter().zip(1..) {
        for (x, piece) in line {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                canvas.svg,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                6.0 + x,
                axis + BOTTOM - 4.0 + LINE * f64::from(number),
                escaped(piece)
            );
        }
    }
    canvas.finish()
}

/// Returns the legend, and the picture without legend and words, for a page.
pub(super) fn picture(explanation: &Explanation, what: &str) -> String {
    let heights = BELOW_LEGEND..axis(explanation) + BOTTOM;
    let (mut canvas, legend) = begin(explanation, what, heights);
    rows(&mut canvas, explanation);
    legend.html() + &canvas.finish()
}

fn begin(explanation: &Explanation, what: &str, heights: Range<f64>) -> (Canvas, Legend) {
    let timelines = both(explanation).map(|(_, timeline)| timeline);
    let spans: usize = timelines.iter().map(|own| own.spans().len()).sum();
    let label = escaped(&explanation.sentence(what));
    let [measured, predicted] = timelines.map(svg::words);
    let words = format!("Measured, above: {measured} Predicted, below: {predicted}");
    let mut canvas = Canvas::new(heights, end(explanation), 2 * spans, &label, &words);
    canvas.svg.push_str(STYLE);
    let legend = canvas.explain(&timelines);
    (canvas, legend)
}

/// Position of the time axis.
fn axis(explanation: &Explanation) -> f64 {
    let lanes: usize = both(explanation).map(|(_, t)| t.devices()).iter().sum();
    TOP + 2.0 * HEADING + ROW * lanes as f64
}

fn rows(canvas: &mut Canvas, explanation: &Explanation) {
    let mut y = TOP;
    let [measured, predicted] = both(explanation);
    for ((name, timeline), (other_name, other)) in [(measured, predicted), (predicted, measured)] {
        let titles = Titles::new(name, other_name, other);
        canvas.beside(&heading(name, timeline, y + 14.0));
        lanes_of(canvas, timeline, y + HEADING, &titles);
        y += HEADING + ROW * timeline.devices() as f64;
    }
    canvas.axis(axis(explanation));
}

/// A single text element, so that the numbers follow the name in any font.
fn heading(name: &str, timeline: &Timeline, y: f64) -> String {
    let numbers = numbers(timeline);
    format!(
        "<text x=\"6\" y=\"{y}\"><tspan class=\"name\">{name}</tspan>\
         <tspan dx=\"12\">{numbers}</tspan></text>\n"
    )
}

/// Draws the devices' rows from `y` on, and a line at the timeline's end.
fn lanes_of(canvas: &mut Canvas, timeline: &Timeline, y: f64, titles: &Titles<'_>) {
    for device in (0..timeline.devices()).map(DeviceId) {
        let y = y + ROW * device.index() as f64;
        canvas.lane(device, y, timeline.makespan());
        for span in timeline.spans_on(device) {
            canvas.bar(span, y, &titles.of(span));
        }
    }
    canvas.end_at(timeline.makespan(), y, timeline.devices());
}

/// Titles of actions: their times in this timeline and in the other one.
struct Titles<'a> {
    here: &'a str,
    there: &'a str,
    others: HashMap<Action, &'a Span>,
}

impl<'a> Titles<'a> {
    fn new(here: &'a str, there: &'a str, other: &'a Timeline) -> Self {
        let others = other.spans().iter().map(|span| (span.action, span));
        Self {
            here,
            there,
            others: others.collect(),
        }
    }

    fn of(&self, span: &Span) -> String {
        let Self { here, there, .. } = self;
        let own = format!("{}\n{here} {}", described(span), times(span));
        let Some(other) = self.others.get(&span.action) else {
            return own;
        };
        let longer: (Micros, Micros) = (other.duration(), span.duration());
        let delta = Delta::between(longer.0, longer.1);
        format!("{own}\n{there} {}; {delta}", times(other))
    }
}
