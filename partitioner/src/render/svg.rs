//! The timeline as an SVG picture.

use crate::ids::DeviceId;
use crate::schedule::Kind;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;
use std::fmt::Write as _;

/// Pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 70.0;
const ROW: f64 = 30.0;
const BAR: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 30.0;
/// A digit's width in the labels' font.
const DIGIT: f64 = 6.5;

/// How a kind is drawn: light enough for black text, and with a hatching of its own
/// so that the kinds differ without colours.
struct Look {
    name: &'static str,
    color: &'static str,
    hatch: &'static str,
}

const fn look(kind: Kind) -> Look {
    let (name, color, hatch) = match kind {
        Kind::Forward => ("forward (F)", "#cbe4f6", ""),
        Kind::Backward => ("backward (B)", "#9fd69f", "M0 8L8 0"),
        Kind::BackwardInput => ("input gradient (I)", "#f3b668", "M0 4H8"),
        Kind::BackwardWeight => ("weight gradient (W)", "#b897da", "M4 0V8"),
        Kind::Recompute => ("recompute (R)", "#f2f2f2", "M0 0L8 8M0 8L8 0"),
    };
    Look { name, color, hatch }
}

/// Colours of everything but the bars, for light and dark surroundings. Labels have
/// a rim in their bar's colour, so that the hatching does not cross them out.
const STYLE: &str = "<style>\
.tl text{fill:#111}.tl .ground{fill:#fff}.tl .lane{fill:#f1f1f1}.tl .tick{stroke:#333}\
.tl g rect,.tl .key{stroke:#333;stroke-width:.6}\
.tl g text{fill:#000;text-anchor:middle;paint-order:stroke;stroke-width:2px;stroke-linejoin:round;font-size:10px}\
.tl g:hover rect{stroke:#000;stroke-width:2.5}\
@media (prefers-color-scheme:dark){\
.tl text{fill:#eee}.tl .ground{fill:#16181c}.tl .lane{fill:#2a2d33}.tl .tick{stroke:#bbb}\
.tl g text{fill:#000}.tl g:hover rect{stroke:#fff}}";

/// One row a device, one bar an action; each bar says what it is when pointed at.
/// Below: the time axis, the legend, and the bubble. A document of its own, without
/// scripts.
///
/// # Complexity
/// Linear in the number of spans, about 200 bytes each.
pub fn svg(timeline: &Timeline) -> String {
    let height = TOP + ROW * timeline.devices() as f64 + BOTTOM;
    let mut svg = String::with_capacity(220 * timeline.spans().len() + 4096);
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         class=\"tl\" font-family=\"sans-serif\" font-size=\"11\" role=\"img\" \
         aria-label=\"pipeline timeline\">"
    );
    definitions(&mut svg);
    legend(&mut svg, timeline);
    for device in 0..timeline.devices() {
        row(&mut svg, timeline, device);
    }
    axis(&mut svg, timeline, height);
    svg.push_str("</svg>\n");
    svg
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

fn legend(svg: &mut String, timeline: &Timeline) {
    let mut x = MARGIN;
    for kind in Kind::ALL {
        if !timeline.spans().iter().any(|span| span.action.kind == kind) {
            continue;
        }
        let Look { name, .. } = look(kind);
        let _ = writeln!(
            svg,
            "<rect class=\"key\" x=\"{x}\" y=\"8\" width=\"16\" height=\"14\" fill=\"url(#k{})\"/>\
             <text x=\"{}\" y=\"19\">{name}</text>",
            kind.letter(),
            x + 21.0
        );
        x += 40.0 + DIGIT * name.len() as f64;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"19\" text-anchor=\"end\">step {}, bubble {:.1} %</text>",
        WIDTH - 10.0,
        timeline.makespan(),
        100.0 * timeline.bubble_fraction()
    );
}

/// Where a point in time is drawn.
fn place(timeline: &Timeline, time: Micros) -> f64 {
    let share = time.get() / timeline.makespan().get();
    MARGIN + if share.is_nan() { 0.0 } else { share } * (WIDTH - MARGIN - 10.0)
}

fn row(svg: &mut String, timeline: &Timeline, device: usize) {
    let y = TOP + ROW * device as f64;
    let device = DeviceId(device);
    let _ = writeln!(
        svg,
        "<text x=\"6\" y=\"{}\">device {device}</text>\
         <rect class=\"lane\" x=\"{MARGIN}\" y=\"{y}\" width=\"{}\" height=\"{BAR}\"/>",
        y + 16.0,
        WIDTH - MARGIN - 10.0
    );
    for span in timeline.spans_on(device) {
        bar(svg, timeline, span, y);
    }
}

fn bar(svg: &mut String, timeline: &Timeline, span: &Span, y: f64) {
    let (x, end) = (place(timeline, span.start), place(timeline, span.end));
    let width = end - x;
    let action = span.action;
    let letter = action.kind.letter();
    let _ = write!(
        svg,
        "<g class=\"{letter}\"><title>{action}: {}, stage {}, micro-batch {}\n{} to {} ({})</title>\
         <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"url(#k{letter})\"/>",
        look(action.kind).name,
        action.stage,
        action.micro,
        span.start,
        span.end,
        span.duration(),
    );
    let full = action.to_string();
    let short = format!("{letter}{}", action.micro);
    if let Some(label) = [full, short]
        .into_iter()
        .find(|l| l.len() as f64 * DIGIT + 2.0 < width)
    {
        let _ = write!(
            svg,
            "<text x=\"{:.2}\" y=\"{}\">{label}</text>",
            x + width / 2.0,
            y + 16.0
        );
    }
    svg.push_str("</g>\n");
}

fn axis(svg: &mut String, timeline: &Timeline, height: f64) {
    const TICKS: u32 = 5;
    for tick in 0..=TICKS {
        let time = timeline.makespan() * (f64::from(tick) / f64::from(TICKS));
        let x = place(timeline, time);
        let anchor = if tick == TICKS { "end" } else { "middle" };
        let _ = writeln!(
            svg,
            "<path class=\"tick\" d=\"M{x:.2} {}v5\"/>\
             <text x=\"{x:.2}\" y=\"{}\" text-anchor=\"{anchor}\">{time}</text>",
            height - BOTTOM,
            height - BOTTOM + 17.0
        );
    }
}
