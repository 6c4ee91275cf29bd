//! The chart.

use super::lines::{Axis, Line, Spacing};
use super::marks::{RADIUS, dark, mark};
use crate::render::page::{escaped, percent};
use crate::render::ticks;
use crate::sweep::SweepPoint;
use std::fmt::Write as _;

/// Sizes in pixels.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 16.0;
const BELOW: f64 = 48.0;
/// Least distance of values whose labels do not touch.
const APART: f64 = 44.0;
/// Distance from the edges of the grid to the first and the last value.
const INSET: f64 = 20.0;
/// Most lines across in addition to the lowest.
const ACROSS: u32 = 5;
/// Least upper end of the axis: smaller shares would look large.
const LOWEST_TOP: f64 = 0.1;
/// Distance up to which points and lines coincide.
const SAME: f64 = 1.0;
/// Length of a dash of coinciding lines.
const DASH: f64 = 9.0;
/// Radius of the widest of coinciding points.
const WIDEST: f64 = 12.0;
/// Width of a character, and height of a name.
const CHARACTER: f64 = 7.0;
const NAME: f64 = 16.0;
/// Distance from the last values to the names.
const LEAD: f64 = 40.0;

const STYLE: &str = "<style>\
.sw text{font:13px system-ui,sans-serif;fill:#15181c}.sw .grid{stroke:#8d97a3;stroke-width:.5}\
.sw .line{fill:none;stroke-width:2}.sw .mark{stroke:#fff;stroke-width:.8}.keys .sw{vertical-align:-2px;margin-right:4px}\
.sw .lead{stroke:#8d97a3;stroke-width:.7;fill:none}\
@media (prefers-color-scheme:dark){.sw text{fill:#eceff3}.sw .mark{stroke:#15171b}";

/// Draws the chart of the bubbles, or of all lost time with failures.
pub(super) fn picture(axis: Axis, points: &[SweepPoint], lines: &[Line<'_>]) -> String {
    let values = axis.values(points);
    let width = WIDTH - LEFT - names_width(lines) - 16.0 - 2.0 * INSET;
    let (spacing, shares) = Spacing::of(&values, APART / width);
    let all = lines.iter().flat_map(|line| &line.points);
    let highest = all.map(|point| lost(point)).fold(LOWEST_TOP, f64::max);
    let scale = Scale {
        axis,
        values: &values,
        spacing,
        shares: &shares,
        right: names_width(lines) + 16.0,
        ticks: ticks::shares(highest, ACROSS),
    };
    let height = TOP + HEIGHT + BELOW;
    let mut svg = format!(
        "<div class=\"chart\" role=\"group\" tabindex=\"0\" aria-label=\"{1} by {0}\">\n\
         <svg class=\"sw\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" \
         role=\"img\" aria-label=\"{1} by {0}; the table below has all numbers\">{STYLE}{2}}}</style>\n",
        axis.name(),
        what(points),
        dark()
    );
    scale.grid(&mut svg);
    let places: Vec<Vec<Place>> = lines.iter().map(|line| scale.places(line)).collect();
    strokes(&mut svg, &places);
    marks(&mut svg, lines, &places);
    if names_width(lines) > 0.0 {
        names(&mut svg, lines, &places);
    }
    svg.push_str("</svg>\n</div>\n");
    svg
}

fn lost(point: &SweepPoint) -> f64 {
    point.outcome.as_ref().map_or(0.0, |own| own.lost())
}

/// Returns the quantity of the chart.
pub(super) fn what(points: &[SweepPoint]) -> &'static str {
    if points.iter().any(|point| point.risk.failures.is_some()) {
        "Time lost to bubbles, checkpoints and failures"
    } else {
        "Bubble"
    }
}

/// Returns the width of the names on the right; 0 if there are too many.
fn names_width(lines: &[Line<'_>]) -> f64 {
    if lines.len() as f64 * NAME > HEIGHT {
        return 0.0;
    }
    let longest = lines.iter().map(|line| line.name.chars().count()).max();
    let width = longest.unwrap_or(0) as f64 * CHARACTER + LEAD;
    if width > WIDTH / 3.0 { 0.0 } else { width }
}

/// Position of a point in the picture.
type Place = (f64, f64);

fn is_same(a: Place, b: Place) -> bool {
    (a.0 - b.0).abs() <= SAME && (a.1 - b.1).abs() <= SAME
}

/// Returns how many of `same` there are, and the index of this one among them.
fn turn(number: usize, same: impl Iterator<Item = usize>) -> (usize, usize) {
    let mut turn = (0, 0);
    for other in same {
        turn.1 += usize::from(other < number);
        turn.0 += 1;
    }
    turn
}

/// Draws lines from point to point. Of n coinciding lines each gets every n-th dash.
fn strokes(svg: &mut String, places: &[Vec<Place>]) {
    for (number, line) in places.iter().enumerate() {
        let own = mark(number);
        for pair in line.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let along = |other: &[Place]| is_same(other[0], from) && is_same(other[1], to);
            let same = (0..places.len()).filter(|&other| places[other].windows(2).any(along));
            let (count, turn) = turn(number, same);
            let dashes = match count {
                0 | 1 => own.dashes.to_owned(),
                _ => format!("{DASH} {}", DASH * (count - 1) as f64),
            };
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                svg,
                "<polyline class=\"line\" stroke=\"{}\" stroke-dasharray=\"{dashes}\" \
                 stroke-dashoffset=\"{}\" points=\"{:.1},{:.1} {:.1},{:.1}\"/>",
                own.colour,
                0.0 - turn as f64 * DASH,
                from.0,
                from.1,
                to.0,
                to.1
            );
        }
    }
}

/// Draws the lines' names at their last points, without overlap.
fn names(svg: &mut String, lines: &[Line<'_>], places: &[Vec<Place>]) {
    let end = places.iter().flatten().map(|&(x, _)| x);
    let end = end.fold(0.0, f64::max);
    let last = |line: usize| places[line].last().copied().unwrap_or_default();
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by(|&a, &b| last(a).1.total_cmp(&last(b).1));
    let mut heights: Vec<f64> = order.iter().map(|&line| last(line).1).collect();
    for at in 1..heights.len() {
        heights[at] = heights[at].max(heights[at - 1] + NAME);
    }
    // Moves names up from the lower edge.
    let mut lowest = TOP + HEIGHT;
    for height in heights.iter_mut().rev() {
        *height = height.min(lowest);
        lowest = *height - NAME;
    }
    for (&line, y) in order.iter().zip(heights) {
        let (from, own) = (last(line), mark(line));
        let x = end + LEAD;
        let _ = writeln!(
            svg,
            "<path class=\"lead\" d=\"M{:.1} {:.1}L{:.1} {y:.1}\"/>",
            from.0 + WIDEST + 2.0,
            from.1,
            x - RADIUS - 4.0,
        );
        let _ = writeln!(
            svg,
            "{}<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            own.sample((x, y)),
            x + 9.0,
            y + 4.5,
            escaped(&lines[line].name)
        );
    }
}

struct Scale<'a> {
    axis: Axis,
    values: &'a [f64],
    spacing: Spacing,
    /// Position of each value, as a share of the width.
    shares: &'a [f64],
    /// Free space on the right.
    right: f64,
    /// Shares across, the last at the upper edge.
    ticks: Vec<(f64, String)>,
}

impl Scale<'_> {
    fn x(&self, value: f64) -> f64 {
        let place = (self.values.iter()).position(|own| own.total_cmp(&value).is_eq());
        let share = place.and_then(|place| self.shares.get(place));
        let width = WIDTH - LEFT - self.right - 2.0 * INSET;
        LEFT + width * share.copied().unwrap_or_default() + INSET
    }

    fn y(&self, share: f64) -> f64 {
        let top = self.ticks.last().map_or(1.0, |(top, _)| *top);
        TOP + HEIGHT * (1.0 - share / top)
    }

    fn places(&self, line: &Line<'_>) -> Vec<Place> {
        let place = |point: &&SweepPoint| (self.x(self.axis.of(point)), self.y(lost(point)));
        line.points.iter().map(place).collect()
    }

    fn grid(&self, svg: &mut String) {
        for (share, label) in &self.ticks {
            let y = self.y(*share);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                WIDTH - self.right,
                LEFT - 6.0,
                y + 4.0
            );
        }
        let below = TOP + HEIGHT;
        for &value in self.values {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.x(value),
                below + 18.0,
                self.axis.label(value)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}{}</text>",
            f64::midpoint(LEFT, WIDTH - self.right),
            below + 36.0,
            self.axis.name(),
            self.spacing.words()
        );
    }
}

/// Draws the points. Of coinciding points the first is the widest.
fn marks(svg: &mut String, lines: &[Line<'_>], places: &[Vec<Place>]) {
    for (number, line) in lines.iter().enumerate() {
        for (point, &place) in line.points.iter().zip(&places[number]) {
            let here = |other: &usize| places[*other].iter().any(|own| is_same(*own, place));
            let (count, turn) = turn(number, (0..places.len()).filter(here));
            let around = count.saturating_sub(turn + 1) as f64;
            let step = (WIDEST - RADIUS) / (count as f64 - 1.0).max(3.0);
            let mut words: Vec<String> = [Axis::Devices, Axis::Chunks, Axis::MicroBatches]
                .map(|axis| axis.words(point))
                .into();
            words.extend(point.risk.jitter.map(|_| Axis::Jitter.words(point)));
            words.extend(point.risk.failures.map(|_| Axis::Failures.words(point)));
            let title = format!(
                "{}, {}: {}",
                point.schedule,
                words.join(", "),
                percent(lost(point))
            );
            mark(number).point(svg, place, RADIUS + step * around, &title);
        }
    }
}
