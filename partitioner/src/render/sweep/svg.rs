//! The chart: places along the axis are evenly apart, whatever lies between their values.

use super::{Axis, Line};
use crate::render::page::{escaped, percent};
use crate::sweep::{SweepOutcome, SweepPoint};
use std::fmt::Write as _;

/// Pixels.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const KEY: f64 = 20.0;
const KEY_COLUMNS: usize = 4;
/// Lines across.
const ACROSS: u32 = 5;

/// Told apart in print, too, by their dashes (Okabe and Ito's colours).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#777777",
];
const DASHES: [&str; 4] = ["none", "8 4", "2 3", "10 3 2 3"];

const STYLE: &str = "<style>\
.sw text{font:13px system-ui,sans-serif;fill:#15181c}.sw .grid{stroke:#8d97a3;stroke-width:.5}\
.sw .line{fill:none;stroke-width:2}\
@media (prefers-color-scheme:dark){.sw text{fill:#eceff3}}</style>";

/// The chart of the bubbles.
pub(super) fn picture(axis: Axis, points: &[SweepPoint], lines: &[Line<'_>]) -> String {
    let values = axis.values(points);
    let all = lines.iter().flat_map(|line| &line.points);
    let highest = all.map(|point| bubble(point)).fold(0.0, f64::max);
    let scale = Scale {
        values: &values,
        top: (highest * 10.0).ceil().max(1.0) / 10.0,
    };
    let rows = lines.len().div_ceil(KEY_COLUMNS);
    let height = TOP + HEIGHT + 48.0 + KEY * rows as f64;
    let mut svg = format!(
        "<div class=\"chart\" role=\"group\" tabindex=\"0\" aria-label=\"Bubble by {0}\">\n\
         <svg class=\"sw\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         role=\"img\" aria-label=\"Bubble by {0}; the table below has all numbers\">{STYLE}\n",
        axis.name()
    );
    scale.grid(&mut svg, axis);
    for (number, line) in lines.iter().enumerate() {
        scale.line(&mut svg, axis, number, line);
    }
    svg.push_str("</svg>\n</div>\n");
    svg
}

fn bubble(point: &SweepPoint) -> f64 {
    point
        .outcome
        .as_ref()
        .map_or(0.0, |own: &SweepOutcome| own.bubble_fraction)
}

struct Scale<'a> {
    values: &'a [usize],
    /// The share at the upper edge.
    top: f64,
}

impl Scale<'_> {
    fn x(&self, value: usize) -> f64 {
        let place = self.values.binary_search(&value).unwrap_or(0) as f64;
        let steps = (self.values.len() as f64 - 1.0).max(1.0);
        LEFT + (WIDTH - LEFT - RIGHT - 40.0) * place / steps + 20.0
    }

    fn y(&self, share: f64) -> f64 {
        TOP + HEIGHT * (1.0 - share / self.top)
    }

    fn grid(&self, svg: &mut String, axis: Axis) {
        for part in 0..=ACROSS {
            let share = self.top * f64::from(part) / f64::from(ACROSS);
            let y = self.y(share);
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                percent(share)
            );
        }
        let below = TOP + HEIGHT;
        for &value in self.values {
            let x = self.x(value);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
                below + 18.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            WIDTH / 2.0,
            below + 36.0,
            axis.name()
        );
    }

    fn line(&self, svg: &mut String, axis: Axis, number: usize, line: &Line<'_>) {
        let colour = COLOURS[number % COLOURS.len()];
        let dashes = DASHES[number / COLOURS.len() % DASHES.len()];
        let places: Vec<(f64, f64)> = (line.points.iter())
            .map(|point| (self.x(axis.of(point)), self.y(bubble(point))))
            .collect();
        let path: Vec<String> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"line\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\" points=\"{}\"/>",
            path.join(" ")
        );
        for (point, (x, y)) in line.points.iter().zip(&places) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}, {} {}: {}</title></circle>",
                escaped(&line.name),
                axis.of(point),
                axis.name(),
                percent(bubble(point))
            );
        }
        key(svg, number, (colour, dashes), &line.name);
    }
}

fn key(svg: &mut String, number: usize, (colour, dashes): (&str, &str), name: &str) {
    let x = LEFT + (WIDTH - LEFT) / KEY_COLUMNS as f64 * (number % KEY_COLUMNS) as f64;
    let y = TOP + HEIGHT + 56.0 + KEY * (number / KEY_COLUMNS) as f64;
    let _ = writeln!(
        svg,
        "<line class=\"line\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\" x1=\"{x:.1}\" \
         y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 28.0,
        x + 34.0,
        y + 4.0,
        escaped(name)
    );
}
