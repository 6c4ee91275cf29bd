//! What timelines are drawn with: lanes, bars, axis and legend on one scale.

use crate::schedule::Kind;
use crate::timeline::{Span, Timeline};
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

const fn look(kind: Kind) -> Look {
    let (name, color, hatch) = match kind {
        Kind::Forward => ("forward (F)", "#8ec8f2", ""),
        Kind::Backward => ("backward (B)", "#8fd3a4", "M0 8L8 0"),
        Kind::BackwardInput => ("input gradient (I)", "#f6bd62", "M0 4H8"),
        Kind::BackwardWeight => ("weight gradient (W)", "#c4a5e8", "M4 0V8"),
        Kind::Recompute => ("recompute (R)", "#e3e3e3", "M0 0L8 8M0 8L8 0"),
    };
    Look { name, color, hatch }
}

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
        Self { svg, end }
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
        Self { svg, end }
    }

    /// The kinds of work that occur, from the left.
    pub(in crate::render) fn legend(&mut self, timeline: &Timeline) {
        let mut x = MARGIN;
        for kind in Kind::ALL {
            if !timeline.spans().iter().any(|span| span.action.kind == kind) {
                continue;
            }
            let Look { name, .. } = look(kind);
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                self.svg,
                "<rect class=\"key\" x=\"{x}\" y=\"8\" width=\"16\" height=\"14\" fill=\"url(#k{})\"/>\
                 <text x=\"{}\" y=\"19\">{name}</text>",
                kind.letter(),
                x + 21.0
            );
            x += 40.0 + DIGIT * name.len() as f64;
        }
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
        if let Some(label) = [full, short]
            .into_iter()
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

    /// The time axis, its upper edge at `y`.
    pub(in crate::render) fn axis(&mut self, y: f64) {
        const TICKS: u32 = 5;
        for tick in 0..=TICKS {
            let time = self.end * (f64::from(tick) / f64::from(TICKS));
            let x = self.place(time);
            let anchor = if tick == TICKS { "end" } else { "middle" };
            let _ = writeln!(
                self.svg,
                "<path class=\"tick\" d=\"M{x:.2} {y}v5\"/>\
                 <text x=\"{x:.2}\" y=\"{}\" text-anchor=\"{anchor}\">{time}</text>",
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
    for kind in Kind::ALL {
        let _ = write!(
            svg,
            ".tl .{} text{{stroke:{}}}",
            kind.letter(),
            look(kind).color
        );
    }
    svg.push_str("</style>\n<defs>\n");
    for kind in Kind::ALL {
        let Look { color, hatch, .. } = look(kind);
        let _ = writeln!(
            svg,
            "<pattern id=\"k{}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"8\" height=\"8\" fill=\"{color}\"/>\
             <path d=\"{hatch}\" stroke=\"#000\" stroke-opacity=\".3\"/></pattern>",
            kind.letter()
        );
    }
    svg.push_str("</defs>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
}
