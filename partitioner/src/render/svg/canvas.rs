//! What timelines are drawn with: lanes, bars, axis and legend on one scale.

use crate::schedule::ActionKind;
use crate::timeline::{Exchange, Span, Timeline};
use crate::units::Micros;
use std::fmt::Write as _;

/// Pixels.
pub(in crate::render) const WIDTH: f64 = 1200.0;
pub(in crate::render) const MARGIN: f64 = 70.0;
pub(in crate::render) const ROW: f64 = 30.0;
pub(in crate::render) const BAR: f64 = 24.0;
pub(in crate::render) const TOP: f64 = 34.0;
pub(in crate::render) const BOTTOM: f64 = 30.0;
/// Free at the right.
pub(in crate::render) const RIGHT: f64 = 10.0;
/// A digit's width in the labels' font.
const DIGIT: f64 = 6.8;

/// How a kind is drawn: light enough for black text, and with a hatching of its own
/// so that the kinds differ without colours.
struct Look {
    name: &'static str,
    color: &'static str,
    hatch: &'static str,
}

const fn look(kind: ActionKind) -> Look {
    let (name, color, hatch) = match kind {
        ActionKind::Forward => ("forward (F)", "#8ec8f2", ""),
        ActionKind::Backward => ("backward (B)", "#8fd3a4", "M0 8L8 0"),
        ActionKind::BackwardInput => ("input gradient (I)", "#f6bd62", "M0 4H8"),
        ActionKind::BackwardWeight => ("weight gradient (W)", "#c4a5e8", "M4 0V8"),
        ActionKind::Recompute => ("recompute (R)", "#e3e3e3", "M0 0L8 8M0 8L8 0"),
    };
    Look { name, color, hatch }
}

/// The same of gradients that replicas exchange.
const EXCHANGE: Look = Look {
    name: "all-reduce (A)",
    color: "#f3a6b5",
    hatch: "M0 4H8M4 0V8",
};

/// Colours of everything but the bars, for light and dark surroundings. Labels have
/// a rim in their bar's colour, so that the hatching does not cross them out.
const STYLE: &str = "<style>\
.tl text{fill:#15181c}.tl .ground{fill:#fff}.tl .lane{fill:#f1f3f5}.tl .tick{stroke:#333}\
.tl g rect,.tl .key{stroke:#333;stroke-width:.6}\
.tl g text{fill:#000;text-anchor:middle;paint-order:stroke;stroke-width:2px;stroke-linejoin:round;font-size:10.5px}\
.tl g:hover rect{stroke:#000;stroke-width:2.5}\
@media (prefers-color-scheme:dark){\
.tl text{fill:#eceff3}.tl .ground{fill:#15171b}.tl .lane{fill:#262a31}.tl .tick{stroke:#bbb}\
.tl g text{fill:#000}.tl g:hover rect{stroke:#fff}}";

/// What an action is, for whoever cannot tell it from its letters.
pub(in crate::render) fn described(span: &Span) -> String {
    let action = span.action;
    format!(
        "{action}: {}, stage {}, micro-batch {}",
        look(action.kind).name,
        action.stage,
        action.micro
    )
}

/// From when to when.
pub(in crate::render) fn times(span: &Span) -> String {
    format!("{} to {} ({})", span.start, span.end, span.duration())
}

/// An SVG that is being written, with the end of its time axis.
pub(in crate::render) struct Canvas {
    pub(in crate::render) svg: String,
    end: Micros,
    /// Whether no device has actions of two stages.
    pub(in crate::render) one_stage: bool,
}

impl Canvas {
    /// The begin of a document: ground, style and patterns. `label` and `words`, the
    /// picture in a few of them, are SVG's text.
    pub(in crate::render) fn new(
        height: f64,
        end: Micros,
        spans: usize,
        label: &str,
        words: &str,
    ) -> Self {
        let mut svg = String::with_capacity(220 * spans + 4096);
        let namespace = " xmlns=\"http://www.w3.org/2000/svg\"";
        open(&mut svg, namespace, height, label, words);
        definitions(&mut svg);
        Self {
            svg,
            end,
            one_stage: true,
        }
    }

    /// The begin of a picture in a page that has another one, whose style and patterns
    /// it shares.
    pub(in crate::render) fn within_a_page(
        height: f64,
        end: Micros,
        label: &str,
        words: &str,
    ) -> Self {
        let mut svg = String::new();
        open(&mut svg, "", height, label, words);
        svg.push_str("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
        Self {
            svg,
            end,
            one_stage: true,
        }
    }

    /// The kinds of work that occur, from the left.
    pub(in crate::render) fn legend(&mut self, timeline: &Timeline) {
        let mut x = MARGIN;
        for kind in ActionKind::ALL {
            if !timeline.spans().iter().any(|span| span.action.kind == kind) {
                continue;
            }
            let Look { name, .. } = look(kind);
            self.key(x, kind.letter(), name);
            x += 40.0 + DIGIT * name.len() as f64;
        }
        if !timeline.exchanges().is_empty() {
            // Pictures without replicas are spared it.
            self.svg.push_str("<defs>");
            pattern(&mut self.svg, 'A', &EXCHANGE);
            let Look { name, color, .. } = EXCHANGE;
            let _ = writeln!(
                self.svg,
                "</defs><style>.tl .A text{{stroke:{color}}}</style>"
            );
            self.key(x, 'A', name);
        }
    }

    /// A sign of the legend and what it means.
    fn key(&mut self, x: f64, letter: char, name: &str) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            self.svg,
            "<rect class=\"key\" x=\"{x}\" y=\"8\" width=\"16\" height=\"14\" fill=\"url(#k{letter})\"/>\
             <text x=\"{}\" y=\"19\">{name}</text>",
            x + 21.0
        );
    }

    /// Where a point in time is drawn.
    pub(in crate::render) fn place(&self, time: Micros) -> f64 {
        let share = time.get() / self.end.get();
        MARGIN + if share.is_nan() { 0.0 } else { share } * (WIDTH - MARGIN - RIGHT)
    }

    /// A row's name and ground.
    pub(in crate::render) fn lane(&mut self, name: &str, y: f64) {
        let _ = writeln!(
            self.svg,
            "<text x=\"6\" y=\"{}\">{name}</text>\
             <rect class=\"lane\" x=\"{MARGIN}\" y=\"{y}\" width=\"{}\" height=\"{BAR}\"/>",
            y + 16.0,
            WIDTH - MARGIN - RIGHT
        );
    }

    /// An action, in the row at `y`, with what is said of it when pointed at.
    pub(in crate::render) fn bar(&mut self, span: &Span, y: f64, title: &str) {
        let (x, end) = (self.place(span.start), self.place(span.end));
        let width = end - x;
        let letter = span.action.kind.letter();
        let _ = write!(
            self.svg,
            "<g class=\"{letter}\"><title>{title}</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"url(#k{letter})\"/>",
        );
        let full = span.action.to_string();
        let short = format!("{letter}{}", span.action.micro);
        // Without its stage an action of one of several is two.
        let short = self.one_stage.then_some(short);
        if let Some(label) = [Some(full), short]
            .into_iter()
            .flatten()
            .find(|l| l.len() as f64 * DIGIT + 2.0 < width)
        {
            let _ = write!(
                self.svg,
                "<text x=\"{:.2}\" y=\"{}\">{label}</text>",
                x + width / 2.0,
                y + 16.0
            );
        }
        self.svg.push_str("</g>\n");
    }

    /// Gradients on their way, in the row at `y`: drawn before its actions, which they are
    /// behind.
    pub(in crate::render) fn exchange(&mut self, exchange: &Exchange, y: f64) {
        let Exchange {
            stage, start, end, ..
        } = *exchange;
        let (x, right) = (self.place(start), self.place(end));
        // By its height a row is known to the script, and these are one of their own.
        let _ = write!(
            self.svg,
            "<g class=\"A\"><title>{stage}A: {}, stage {stage}\n{start} to {end} ({})</title>\
             <rect x=\"{x:.2}\" y=\"{}\" width=\"{:.2}\" height=\"{}\" fill=\"url(#kA)\"/>",
            EXCHANGE.name,
            end - start,
            y + 0.5,
            right - x,
            BAR - 1.0
        );
        let label = if self.one_stage {
            "A".to_owned()
        } else {
            format!("{stage}A")
        };
        if label.len() as f64 * DIGIT + 2.0 < right - x {
            let (middle, base) = (f64::midpoint(x, right), y + 16.0);
            let _ = write!(
                self.svg,
                "<text x=\"{middle:.2}\" y=\"{base}\">{label}</text>"
            );
        }
        self.svg.push_str("</g>\n");
    }

    /// The time axis, its upper edge at `y`.
    pub(in crate::render) fn axis(&mut self, y: f64) {
        for (time, label) in ticks(self.end) {
            let x = self.place(time);
            let fits = x + 0.5 * DIGIT * label.chars().count() as f64 <= WIDTH;
            let anchor = if fits { "middle" } else { "end" };
            let _ = writeln!(
                self.svg,
                "<path class=\"tick\" d=\"M{x:.2} {y}v5\"/>\
                 <text x=\"{x:.2}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
                y + 17.0
            );
        }
    }

    /// The whole document.
    pub(in crate::render) fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// At most nine round times from 0 to `end`, with their names.
fn ticks(end: Micros) -> Vec<(Micros, String)> {
    const PARTS: f64 = 8.0;
    let (unit, name) = match end.get() {
        end if end < 1e3 => (1.0, "µs"),
        end if end < 1e6 => (1e3, "ms"),
        _ => (1e6, "s"),
    };
    let part = end.get() / unit / PARTS;
    if part.is_nan() || part <= 0.0 {
        return vec![(Micros::ZERO, "0".to_owned())];
    }
    let power = part.log10().floor();
    let base = 10_f64.powf(power);
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|round| round * base >= part);
    let step = round.unwrap_or(10.0) * base;
    // The mantissa 10 has a digit less than it says, which does no harm.
    let digits = (-power).clamp(0.0, 12.0) as usize;
    let count = (end.get() / unit / step * (1.0 + f64::EPSILON)).floor() as u32;
    let tick = |number: u32| {
        let value = step * f64::from(number);
        let label = match number {
            0 => "0".to_owned(),
            _ => format!("{value:.digits$} {name}"),
        };
        (Micros::saturating(value * unit), label)
    };
    (0..=count.min(PARTS as u32)).map(tick).collect()
}

/// The start tag; a document of its own has a namespace.
fn open(svg: &mut String, namespace: &str, height: f64, label: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<svg{namespace} viewBox=\"0 0 {WIDTH} {height}\" class=\"tl\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{label}\">\n\
         <desc>{words}</desc>"
    );
}

/// The style and the patterns alone, for a page whose pictures share them and that has
/// no timeline.
pub(in crate::render) fn shared() -> String {
    let mut svg = String::from("<svg width=\"0\" height=\"0\" aria-hidden=\"true\">\n");
    definitions(&mut svg);
    svg + "</svg>\n"
}

fn definitions(svg: &mut String) {
    svg.push_str(STYLE);
    for kind in ActionKind::ALL {
        let _ = write!(
            svg,
            ".tl .{} text{{stroke:{}}}",
            kind.letter(),
            look(kind).color
        );
    }
    svg.push_str("</style>\n<defs>\n");
    for kind in ActionKind::ALL {
        pattern(svg, kind.letter(), &look(kind));
    }
    svg.push_str("</defs>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
}

fn pattern(svg: &mut String, letter: char, look: &Look) {
    let Look { color, hatch, .. } = look;
    let _ = writeln!(
        svg,
        "<pattern id=\"k{letter}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
         <rect width=\"8\" height=\"8\" fill=\"{color}\"/>\
         <path d=\"{hatch}\" stroke=\"#000\" stroke-opacity=\".3\"/></pattern>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They were at fifths of the length: 6.60 ms, 13.20 ms, 19.80 ms.
    #[test]
    fn ticks_are_round() {
        let ticks = |end: f64| {
            let ticks = super::ticks(Micros::saturating(end)).into_iter();
            ticks.map(|(_, label)| label).collect::<Vec<_>>()
        };
        let named = |values: &[&str], unit: &str| {
            let names = values.iter().map(|value| format!("{value} {unit}"));
            ["0".to_owned()]
                .into_iter()
                .chain(names)
                .collect::<Vec<_>>()
        };
        let fives = ["5", "10", "15", "20", "25", "30"];
        assert_eq!(ticks(33_000.0), named(&fives, "ms"));
        assert_eq!(ticks(10_000.0), named(&["2", "4", "6", "8", "10"], "ms"));
        assert_eq!(
            ticks(1.0),
            named(&["0.2", "0.4", "0.6", "0.8", "1.0"], "µs")
        );
        assert_eq!(
            ticks(250.0),
            named(&["50", "100", "150", "200", "250"], "µs")
        );
        assert_eq!(ticks(2.4e6), named(&["0.5", "1.0", "1.5", "2.0"], "s"));
        assert_eq!(ticks(0.0), ["0"]);
        assert!(ticks(f64::MAX).len() > 1);
    }
}
