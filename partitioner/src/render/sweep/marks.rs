//! Marks that distinguish lines: a colour, a shape of their points, and dashes.

use super::lines::Line;
use crate::render::page::escaped;
use std::fmt::Write as _;

/// Okabe and Ito's colours, two of them darkened to be visible on white, and five more.
const COLOURS: [&str; 12] = [
    "#0072b2", "#d55e00", "#009e73", "#c46c9c", "#8a6d00", "#3a96d2", "#777777", "#7a5cd6",
    "#c9304f", "#5b8f00", "#a0623a", "#009aa8",
];
/// The same colours for dark pages.
const DARK: [&str; 12] = [
    "#56b4e9", "#ff8c42", "#2cc79b", "#e29ac4", "#d4b23c", "#8fd0ff", "#b0b0b0", "#ab97f0",
    "#ff7d92", "#9ccb3b", "#d9a06e", "#3ccbd8",
];

/// Returns the style that replaces the colours on dark pages.
pub(super) fn dark() -> String {
    let pairs = COLOURS.iter().zip(DARK);
    pairs.fold(String::new(), |css, (light, dark)| {
        css + &format!(
            ".sw [stroke=\"{light}\"]{{stroke:{dark}}}.sw [fill=\"{light}\"]{{fill:{dark}}}"
        )
    })
}

const DASHES: [&str; 4] = ["none", "8 4", "2 3", "10 3 2 3"];
/// Radius of a point.
pub(super) const RADIUS: f64 = 4.0;

/// Shape of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Circle,
    Square,
    Diamond,
    Triangle,
}

/// Mark of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) colour: &'static str,
    pub(super) dashes: &'static str,
    form: Form,
}

/// Returns the mark of the line with this number: the first 48 are all different.
pub(super) fn mark(number: usize) -> Mark {
    let round = number / COLOURS.len();
    Mark {
        colour: COLOURS[number % COLOURS.len()],
        dashes: DASHES[round % DASHES.len()],
        form: match (number + round) % 4 {
            0 => Form::Circle,
            1 => Form::Square,
            2 => Form::Diamond,
            _ => Form::Triangle,
        },
    }
}

impl Mark {
    /// Draws a point that shows `title` when pointed at.
    pub(super) fn point(self, svg: &mut String, (x, y): (f64, f64), radius: f64, title: &str) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            svg,
            "<{} class=\"mark\" fill=\"{}\"><title>{}</title></{}>",
            self.outline((x, y), radius),
            self.colour,
            escaped(title),
            match self.form {
                Form::Circle => "circle",
                _ => "path",
            }
        );
    }

    /// Returns a point beside a name.
    pub(super) fn sample(self, place: (f64, f64)) -> String {
        format!(
            "<{} fill=\"{}\"/>",
            self.outline(place, RADIUS),
            self.colour
        )
    }

    /// Returns the element of its shape; all have about the same area.
    fn outline(self, (x, y): (f64, f64), radius: f64) -> String {
        let (half, tip) = (radius * 0.9, radius * 1.25);
        match self.form {
            Form::Circle => format!("circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\""),
            Form::Square => {
                let (left, top, side) = (x - half, y - half, 2.0 * half);
                format!("path d=\"M{left:.1} {top:.1}h{side:.1}v{side:.1}h-{side:.1}z\"")
            }
            Form::Diamond => {
                let top = y - tip;
                format!(
                    "path d=\"M{x:.1} {top:.1}l{tip:.1} {tip:.1}l-{tip:.1} {tip:.1}l-{tip:.1} -{tip:.1}z\""
                )
            }
            Form::Triangle => {
                let (top, low, side) = (y - tip, 1.9 * tip, 1.1 * tip);
                format!(
                    "path d=\"M{x:.1} {top:.1}l{side:.1} {low:.1}h-{:.1}z\"",
                    2.0 * side
                )
            }
        }
    }
}

/// Returns the legend of the marks, below the chart and outside the scrolling part: a list with as
/// many rows as necessary.
pub(super) fn legend(lines: &[Line<'_>]) -> String {
    let mut html = String::from("<ul class=\"keys\">\n");
    for (number, line) in lines.iter().enumerate() {
        let own = mark(number);
        let _ = writeln!(
            html,
            "<li><svg class=\"sw\" width=\"36\" height=\"14\" aria-hidden=\"true\">\
             <path class=\"line\" stroke=\"{0}\" stroke-dasharray=\"{1}\" d=\"M0 7H32\"/>\
             {2}</svg>{3}</li>",
            own.colour,
            own.dashes,
            own.sample((16.0, 7.0)),
            escaped(&line.name)
        );
    }
    html + "</ul>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::svg::light;

    /// Regression: one colour had a contrast of 2.3 on white.
    #[test]
    fn lines_are_seen_on_white_and_on_black() {
        for colour in COLOURS {
            let colour = u32::from_str_radix(&colour[1..], 16).unwrap();
            let own = light(colour) + 0.05;
            for (ground, contrast) in [
                ("#ffffff", 1.05 / own),
                ("#15171b", own / (light(0x0015_171b) + 0.05)),
            ] {
                assert!(contrast > 3.0, "{colour:06x} on {ground}: {contrast}");
            }
        }
    }

    #[test]
    fn marks_differ() {
        let marks = (0..48).map(|number| format!("{:?}", mark(number)));
        let different: std::collections::BTreeSet<String> = marks.collect();
        assert_eq!(different.len(), 48);
    }
}
