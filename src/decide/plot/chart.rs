//! One chart: a frame with axes, and a curve for each run.

use std::fmt::Write as _;

use gpipe_partitioner::Bytes;

use super::axis::{Range, Scale, short};
use super::field::{Field, is_bytes, is_held_out, is_share};
use super::history::{History, Point};
use super::layout::{ABOVE, DOT, LEFT, PLOT, RIGHT, WIDTH, escaped, held_out, in_turns, of_run};
use super::line::{smoothed, thinned};

/// Most intervals between numbers on the vertical and on the horizontal axis.
const ACROSS: f64 = 8.0;
const ALONG: f64 = 12.0;

/// Fields drawn from zero: their amount matters, not only their change.
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

/// Fields without noise: a moving mean would delay the end of a warm-up.
const EXACT: [&str; 6] = ["lr", "loss_scale", "epoch", "samples", "tokens", "time"];

/// Bytes per GiB.
const GIB: f64 = 1_073_741_824.0;

/// Most points that are marked along a curve; more marks would hide its shape.
const MARKED: usize = 40;

/// A run's values of a field.
#[derive(Debug, Clone, Copy)]
struct Curve<'a> {
    /// Index of the run.
    number: usize,
    run: &'a History,
    points: &'a [Point],
    is_held_out: bool,
    is_bytes: bool,
    /// Number of earlier curves with the same points, and number of all curves with them.
    turn: (usize, usize),
}

/// A chart with its scales.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    field: &'a Field,
    /// Curves of the runs that have values, followed by those of the field drawn with it.
    curves: Vec<Curve<'a>>,
    /// Number of runs.
    runs: usize,
    steps: Range,
    values: Scale,
    /// Unit of a field of bytes.
    unit: Option<(f64, &'static str)>,
    /// Upper edge of the frame.
    top: f64,
}

impl<'a> Chart<'a> {
    /// Creates a chart of `field` below `y`, over `steps`; logarithmic if asked for and possible.
    pub(super) fn new(
        runs: &'a [History],
        (field, log): (&'a Field, bool),
        steps: Range,
        y: f64,
    ) -> Self {
        let of = |key: &'a str| {
            let all = runs.iter().enumerate();
            all.filter_map(move |(number, run)| {
                Some(Curve {
                    number,
                    run,
                    points: run.points(key)?,
                    is_held_out: is_held_out(key),
                    is_bytes: is_bytes(key),
                    turn: (0, 1),
                })
            })
        };
        let beside = field.beside().into_iter().flat_map(of);
        let mut curves: Vec<Curve<'_>> = of(&field.key).chain(beside).collect();
        take_turns(&mut curves);
        let values = curves.iter().flat_map(|curve| curve.points);
        let values = Range::of(values.map(|&(_, value)| value));
        let values = values.unwrap_or(Range { from: 0.0, to: 1.0 });
        let most = values.to;
        let counts = WITH_ZERO.contains(&field.key.as_str());
        let values = match (counts, log && values.from > 0.0) {
            (true, _) => Scale::plain(values.with_zero().roomy()),
            (false, true) => Scale::log(values),
            (false, false) => Scale::plain(values.roomy()),
        };
        let unit = match values {
            Scale { is_log: false, .. } if is_share(field) => Some((0.01, "")),
            Scale { is_log: false, .. } if is_bytes(&field.key) => Some(unit_of(most)),
            _ => None,
        };
        Self {
            field,
            unit,
            curves,
            runs: runs.len(),
            steps,
            values,
            top: y + ABOVE,
        }
    }

    fn label(&self) -> String {
        match self.unit {
            Some((_, name)) if !name.is_empty() => format!("{} ({name})", self.field.label()),
            _ => self.field.label(),
        }
    }

    /// Whether a curve shows held-out data.
    pub(super) fn has_held_out(&self) -> bool {
        self.curves.iter().any(|curve| curve.is_held_out)
    }

    /// Draws the chart; each point of training is the mean of `window` steps.
    pub(super) fn draw(&self, svg: &mut String, window: usize) {
        self.frame(svg);
        for curve in &self.curves {
            self.curve(svg, curve, window);
        }
    }

    /// Position of a step and a value in the picture.
    fn place(&self, (step, value): Point) -> (f64, f64) {
        let right = self.steps.share(step as f64) * (WIDTH - LEFT - RIGHT);
        let up = self.values.share(value) * PLOT;
        (LEFT + right, self.top + PLOT - up)
    }

    /// Draws title, grid and numbers.
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
        let unit = self.unit.map_or(1.0, |(bytes, _)| bytes);
        for tick in self.values.ticks(ACROSS, unit) {
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

    fn curve(&self, svg: &mut String, curve: &Curve<'_>, window: usize) {
        let style = match (curve.turn, curve.is_held_out) {
            ((turn, among @ 2..), _) => in_turns(curve.number, turn, among),
            (_, true) => held_out(curve.number, self.runs),
            (_, false) => of_run(curve.number),
        };
        let points = curve.points;
        let _ = write!(
            svg,
            "<g {style}><title>{}</title>",
            escaped(&curve.words(": "))
        );
        if window == 1 || curve.is_held_out || EXACT.contains(&self.field.key.as_str()) {
            self.path(svg, "mean", points);
            if window == 1 || curve.is_held_out {
                self.marks(svg, points);
            }
        } else {
            self.path(svg, "raw", points);
            self.path(svg, "mean", &smoothed(points, window));
        }
        svg.push_str("</g>\n");
    }

    /// Marks each of a few points, since a line alone would look measured everywhere.
    fn marks(&self, svg: &mut String, points: &[Point]) {
        if (2..=MARKED).contains(&points.len()) {
            points.iter().for_each(|point| self.dot(svg, *point));
        }
    }

    fn dot(&self, svg: &mut String, point: Point) {
        let (x, y) = self.place(point);
        let _ = write!(
            svg,
            "<circle class=\"dot\" cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{DOT}\"/>"
        );
    }

    fn path(&self, svg: &mut String, class: &str, points: &[Point]) {
        let column = |step: u64| self.place((step, 0.0)).0.floor() as i64;
        let thin = thinned(points, column);
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

    /// Describes the chart for readers who cannot see it.
    pub(super) fn words(&self) -> String {
        let curves = self.curves.iter().map(|curve| curve.words(" "));
        format!(
            "{}: {}.",
            self.label(),
            curves.collect::<Vec<_>>().join("; ")
        )
    }
}

impl Curve<'_> {
    /// Describes the curve: `runs/1, held out: 4.1734 at step 1, 1.8021 at step 400`.
    fn words(&self, between: &str) -> String {
        let name = &self.run.name;
        let held_out = if self.is_held_out { ", held out" } else { "" };
        let value = |number: f64| {
            if self.is_bytes {
                Bytes(number as u64).to_string()
            } else {
                short(number)
            }
        };
        format!("{name}{held_out}{between}{}", said(self.points, value))
    }
}

/// Makes identical curves take turns, each visible on a part of the way.
fn take_turns(curves: &mut [Curve<'_>]) {
    let all: Vec<&[Point]> = curves.iter().map(|curve| curve.points).collect();
    for (number, curve) in curves.iter_mut().enumerate() {
        let same = |others: &[&[Point]]| others.iter().filter(|own| **own == curve.points).count();
        curve.turn = (same(&all[..number]), same(&all));
    }
}

/// Returns the largest unit that is not larger than `bytes`.
fn unit_of(bytes: f64) -> (f64, &'static str) {
    let units = [(GIB, "GiB"), (GIB / 1024.0, "MiB"), (1024.0, "KiB")];
    let fits = |(unit, _): &(f64, &str)| bytes >= *unit;
    units.into_iter().find(fits).unwrap_or((1.0, "bytes"))
}

/// Describes the first and the last point: `4.1734 at step 1, 1.8021 at step 400`.
fn said(points: &[Point], written: impl Fn(f64) -> String) -> String {
    let at = |(step, value): &Point| format!("{} at step {step}", written(*value));
    match points {
        [] => "nothing".to_owned(),
        [only] => at(only),
        [first, .., last] => format!("{}, {}", at(first), at(last)),
    }
}
