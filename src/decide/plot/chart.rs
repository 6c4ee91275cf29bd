//! One chart: a frame with numbers along its edges, and a curve for each run.

use std::fmt::Write as _;

use super::axis::{Range, short};
use super::field::Field;
use super::history::{History, Point};
use super::layout::{ABOVE, COLOURS, LEFT, PLOT, RIGHT, WIDTH, dashes, escaped};
use super::line::{smoothed, thinned};

/// The most intervals between numbers beside a chart, and below it.
const ACROSS: f64 = 8.0;
const ALONG: f64 = 12.0;

/// Fields whose zero means something: how much of it there is, not only how it changes.
const WITH_ZERO: [&str; 8] = [
    "tokens_per_s",
    "samples_per_s",
    "step_ms",
    "makespan_ms",
    "input_wait",
    "bubble_measured",
    "bubble_predicted",
    "mfu",
];

/// A chart that knows its scales.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    field: &'a Field,
    /// A run's number and its points, where it has any.
    curves: Vec<(usize, &'a History, &'a [Point])>,
    /// The same of the field that is drawn with it.
    beside: Vec<(usize, &'a History, &'a [Point])>,
    steps: Range,
    values: Range,
    /// The frame's upper edge.
    top: f64,
}

impl<'a> Chart<'a> {
    /// A chart of `field` below `y`, over `steps`.
    pub(super) fn new(runs: &'a [History], field: &'a Field, steps: Range, y: f64) -> Self {
        let of = |key: &'a str| -> Vec<_> {
            let curve = |(number, run): (usize, &'a History)| Some((number, run, run.points(key)?));
            runs.iter().enumerate().filter_map(curve).collect()
        };
        let (curves, beside) = (of(&field.key), field.beside().map_or_else(Vec::new, of));
        let values = curves
            .iter()
            .chain(&beside)
            .flat_map(|(.., points)| *points);
        let values = Range::of(values.map(|&(_, value)| value));
        let values = values.unwrap_or(Range { from: 0.0, to: 1.0 });
        let counts = WITH_ZERO.contains(&field.key.as_str());
        let values = if counts { values.with_zero() } else { values };
        Self {
            field,
            curves,
            beside,
            steps,
            values: values.roomy(),
            top: y + ABOVE,
        }
    }

    /// Draws it, each point the mean of `window` steps.
    pub(super) fn draw(&self, svg: &mut String, window: usize) {
        self.frame(svg);
        for (number, run, points) in &self.curves {
            self.curve(svg, *number, run, points, window);
        }
        for (number, run, points) in &self.beside {
            self.dotted(svg, *number, run, points);
        }
    }

    /// Where a step and a value are drawn.
    fn place(&self, (step, value): Point) -> (f64, f64) {
        let right = self.steps.share(step as f64) * (WIDTH - LEFT - RIGHT);
        let up = self.values.share(value) * PLOT;
        (LEFT + right, self.top + PLOT - up)
    }

    /// Title, grid and numbers.
    fn frame(&self, svg: &mut String) {
        let (top, floor, end) = (self.top, self.top + PLOT, WIDTH - RIGHT);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            svg,
            "<text class=\"name\" x=\"{LEFT}\" y=\"{}\">{}</text>\n\
             <rect class=\"panel\" x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{PLOT}\"/>",
            top - 9.0,
            escaped(&self.label()),
            end - LEFT
        );
        for tick in self.values.ticks(0.0, ACROSS) {
            let y = top + PLOT * (1.0 - self.values.share(tick.at));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.2}H{end}\"/>\
                 <text x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">{}</text>",
                LEFT - 7.0,
                y + 4.0,
                tick.text
            );
        }
        for tick in self.steps.ticks(1.0, ALONG) {
            let (x, _) = self.place((tick.at as u64, 0.0));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.2} {top}V{}\"/>\
                 <text x=\"{x:.2}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                floor + 4.0,
                floor + 17.0,
                tick.text
            );
        }
    }

    fn curve(
        &self,
        svg: &mut String,
        number: usize,
        run: &History,
        points: &[Point],
        window: usize,
    ) {
        let _ = write!(
            svg,
            "<g class=\"c{}\"{}><title>{}</title>",
            number % COLOURS,
            dashes(number),
            escaped(&format!("{}: {}", run.name, said(points)))
        );
        if window > 1 {
            self.path(svg, "raw", points);
            self.path(svg, "mean", &smoothed(points, window));
        } else {
            self.path(svg, "mean", points);
        }
        svg.push_str("</g>\n");
    }

    /// A curve of few values, with a dot at each.
    fn dotted(&self, svg: &mut String, number: usize, run: &History, points: &[Point]) {
        let title = format!("{}, held out: {}", run.name, said(points));
        let _ = write!(
            svg,
            "<g class=\"c{}\"{}><title>{}</title>",
            number % COLOURS,
            dashes(number),
            escaped(&title)
        );
        if points.len() > 1 {
            self.path(svg, "mean", points);
        }
        for point in self.thin(points) {
            self.dot(svg, point);
        }
        svg.push_str("</g>\n");
    }

    fn dot(&self, svg: &mut String, point: Point) {
        let (x, y) = self.place(point);
        let _ = write!(
            svg,
            "<circle class=\"dot\" cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"4\"/>"
        );
    }

    fn thin(&self, points: &[Point]) -> Vec<Point> {
        let column = |step: u64| self.place((step, 0.0)).0.floor() as i64;
        thinned(points, column)
    }

    fn path(&self, svg: &mut String, class: &str, points: &[Point]) {
        let thin = self.thin(points);
        if let [only] = thin.as_slice() {
            self.dot(svg, *only);
            return;
        }
        let _ = write!(svg, "<path class=\"{class}\" d=\"");
        for (index, point) in thin.into_iter().enumerate() {
            let (x, y) = self.place(point);
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(svg, "{letter}{x:.2} {y:.2}");
        }
        svg.push_str("\"/>");
    }

    /// The chart for whoever cannot see it.
    pub(super) fn words(&self) -> String {
        let curves = self.curves.iter();
        let curves = curves.map(|(_, run, points)| format!("{} {}", run.name, said(points)));
        let beside = self.beside.iter();
        let beside =
            beside.map(|(_, run, points)| format!("{} held out {}", run.name, said(points)));
        format!(
            "{}: {}.",
            self.label(),
            curves.chain(beside).collect::<Vec<_>>().join("; ")
        )
    }

    /// The field, and what is drawn with it.
    fn label(&self) -> String {
        let label = self.field.label();
        if self.beside.is_empty() {
            return label;
        }
        label + "; with dots: held out"
    }
}

/// `4.1734 at step 1, 1.8021 at step 400`
fn said(points: &[Point]) -> String {
    let at = |(step, value): &Point| format!("{} at step {step}", short(*value));
    match points {
        [] => "nothing".to_owned(),
        [only] => at(only),
        [first, .., last] => format!("{}, {}", at(first), at(last)),
    }
}
