//! The curves below each other, on the timeline's axis.

use super::{Curve, WORKING};
use crate::render::page::percent;
use crate::render::svg::canvas::{BOTTOM, Canvas, MARGIN, RIGHT, WIDTH};
use crate::render::svg::legend::Legend;
use crate::render::ticks;
use crate::simulate::MemoryLevel;
use crate::units::{Bytes, Micros};
use std::fmt::Write as _;

/// Sizes in pixels.
const TOP: f64 = 4.0;
const HEADING: f64 = 24.0;
const GAP: f64 = 8.0;
/// Free space above the highest level, as a share of it.
const FREE: f64 = 1.12;
/// Limits and marks above this multiple of the highest level are not drawn: they would flatten the curves.
const FAR: u64 = 3;

/// Classes of the lines of measured amounts.
const MARKS: [&str; 2] = ["mark", "mark dash"];

/// Colours in addition to those of every timeline.
const STYLE: &str = "<style>\
.tl .fix{fill:#aab6c4}.tl .act{fill:#58b9b0}.tl .lay{fill:#e9b9cc}\
.tl .fix,.tl .act,.tl .lay{stroke:#333;stroke-width:.7}\
.tl .lim{stroke:#b3261e;stroke-width:2;stroke-dasharray:7 4}.tl .mark{stroke:#15181c;stroke-width:1.5;stroke-dasharray:2 3}\
.tl .dash{stroke-dasharray:8 3}\
.tl .dot{fill:#15181c;stroke:#fff;stroke-width:1.5}.tl .grid{stroke:#8d97a3;stroke-width:.5}\
.tl .name{font-weight:bold}.tl .red{fill:#a3211a}\
.tl .halo{paint-order:stroke;stroke:#f1f3f5;stroke-width:3px;stroke-linejoin:round}\
@media (prefers-color-scheme:dark){\
.tl .fix{fill:#76859a}.tl .act{fill:#3f9e96}.tl .lay{fill:#a8627f}\
.tl .lim{stroke:#ff9d94}.tl .mark{stroke:#eceff3}.tl .dot{fill:#eceff3;stroke:#000}.tl .red{fill:#ffb1aa}\
.tl .halo{stroke:#262a31}}</style>\n";

/// Returns the legend and the picture, with the time axis ending at `end`; part of a page that has a
/// timeline. All devices share one scale.
pub(in crate::render) fn picture(curves: &[Curve], end: Micros) -> String {
    let plot = match curves.len() {
        0..=4 => 104.0,
        5..=8 => 60.0,
        _ => 40.0,
    };
    let each = HEADING + plot + GAP;
    let axis = TOP + each * curves.len() as f64;
    let label = "Memory of each device over the step";
    let mut canvas = Canvas::within_a_page(axis + BOTTOM, end, label, &words(curves));
    canvas.svg.push_str(STYLE);
    let scale = Scale::new(curves, plot);
    for (curve, y) in curves.iter().zip((0..).map(|n| TOP + each * f64::from(n))) {
        canvas.beside(&heading(curve, y + 15.0, &scale));
        panel(&mut canvas, curve, y + HEADING, &scale);
    }
    canvas.axis(axis);
    legend(curves).html() + &canvas.finish()
}

/// Describes the curves for readers who cannot see them.
fn words(curves: &[Curve]) -> String {
    let peaks: Vec<String> = curves.iter().map(said).collect();
    format!("{}.", peaks.join("; "))
}

fn said(curve: &Curve) -> String {
    let peak = curve.peak();
    let mut text = format!("device {}: ", curve.device);
    // Writing to a String cannot fail, here and below.
    if curve.always() > Bytes::ZERO {
        let _ = write!(text, "{} all the time, ", curve.always());
    }
    let _ = write!(text, "at most {} at {}", peak.bytes, peak.time);
    for (name, bytes) in &curve.marks {
        let _ = write!(text, ", {name} {bytes}");
    }
    if let Some(limit) = curve.limit {
        let _ = write!(text, ", limit {limit}");
    }
    text
}

/// Vertical scale of amounts.
struct Scale {
    top: f64,
    plot: f64,
}

impl Scale {
    fn new(curves: &[Curve], plot: f64) -> Self {
        let peaks = curves.iter().map(|curve| curve.peak().bytes);
        let highest = peaks.max().unwrap_or_default();
        let near = |line: &Bytes| line.get() <= highest.get().saturating_mul(FAR);
        let marks = curves.iter().flat_map(|curve| &curve.marks);
        let lines = (curves.iter().filter_map(|curve| curve.limit))
            .chain(marks.map(|&(_, bytes)| bytes))
            .filter(near);
        let top = lines.fold(highest, Bytes::max).get().max(1);
        Self {
            top: top as f64 * FREE,
            plot,
        }
    }

    /// Height above the panel's floor, in pixels.
    fn height(&self, bytes: Bytes) -> f64 {
        self.plot * bytes.get() as f64 / self.top
    }

    fn shows(&self, line: Bytes) -> bool {
        line.get() as f64 <= self.top
    }
}

fn legend(curves: &[Curve]) -> Legend {
    let any = |of: fn(&Curve) -> Bytes| curves.iter().any(|curve| of(curve) > Bytes::ZERO);
    let keys = [
        (
            any(Curve::always),
            "fix",
            "parameters, optimizer, gradients",
        ),
        (true, "act", "activations in flight"),
        (curves.iter().any(Curve::works), "lay", WORKING),
    ];
    let mut legend = Legend::default();
    for (_, class, name) in keys.into_iter().filter(|(there, ..)| *there) {
        legend.add(vec![format!("class=\"{class}\"")], name);
    }
    let marks = curves.first().map_or(&[][..], |curve| &curve.marks);
    for ((name, _), class) in marks.iter().zip(MARKS) {
        legend.add_line(class, name);
    }
    legend
}

/// A single text element, so that the numbers follow the name in any font.
fn heading(curve: &Curve, y: f64, scale: &Scale) -> String {
    let peak = curve.peak();
    let mut svg = format!(
        "<text x=\"6\" y=\"{y}\"><tspan class=\"name\">device {}</tspan>\
         <tspan dx=\"12\">{} {} at {}",
        curve.device, curve.peak_name, peak.bytes, peak.time,
    );
    for (name, bytes) in &curve.marks {
        let above = if scale.shows(*bytes) {
            ""
        } else {
            " (above the picture)"
        };
        let _ = write!(svg, ", {name} {bytes}{above}");
    }
    if let Some(limit) = curve.limit {
        let share = percent(peak.bytes.get() as f64 / limit.get().max(1) as f64);
        let _ = write!(svg, ", {share} of its {limit}");
    }
    svg.push_str("</tspan></text>\n");
    svg
}

/// Draws one device's plot, with its upper edge at `y`.
fn panel(canvas: &mut Canvas, curve: &Curve, y: f64, scale: &Scale) {
    let (floor, end) = (y + scale.plot, WIDTH - RIGHT);
    let wide = end - MARGIN;
    let _ = writeln!(
        canvas.svg,
        "<rect class=\"lane\" x=\"{MARGIN}\" y=\"{y}\" width=\"{wide}\" height=\"{}\"/>",
        scale.plot
    );
    let bands = [
        ("lay", &curve.levels),
        ("act", &curve.held),
        ("fix", &curve.base),
    ];
    for (class, levels) in bands.into_iter().filter(|(_, levels)| !levels.is_empty()) {
        let levels = outline(canvas, levels, scale, floor);
        let _ = writeln!(canvas.svg, "<path class=\"{class}\" d=\"{levels}\"/>");
    }
    ticks(canvas, scale, floor);
    lines(&mut canvas.svg, curve, scale, floor);
    let peak = curve.peak();
    let _ = writeln!(
        canvas.svg,
        "<circle class=\"dot\" cx=\"{:.2}\" cy=\"{:.2}\" r=\"4\"/>",
        canvas.place(peak.time),
        floor - scale.height(peak.bytes)
    );
}

/// Returns the levels as a closed outline that stands on the floor.
fn outline(canvas: &Canvas, levels: &[MemoryLevel], scale: &Scale, floor: f64) -> String {
    let mut path = format!("M{MARGIN} {floor:.2}");
    for level in lasting(levels) {
        let (x, y) = (canvas.place(level.time), floor - scale.height(level.bytes));
        let _ = write!(path, "H{x:.2}V{y:.2}");
    }
    let _ = write!(path, "H{}V{floor:.2}Z", WIDTH - RIGHT);
    path
}

/// Skips dips of zero duration, where one action ends and the next begins.
fn lasting(levels: &[MemoryLevel]) -> impl Iterator<Item = &MemoryLevel> {
    levels.iter().enumerate().filter_map(|(at, level)| {
        let next = levels.get(at + 1).filter(|next| next.time == level.time);
        let before = at.checked_sub(1).map_or(Bytes::ZERO, |at| levels[at].bytes);
        let dip = next.is_some_and(|next| level.bytes <= next.bytes.max(before));
        (!dip).then_some(level)
    })
}

/// Draws lines across, and their names beside the scrolling part.
fn ticks(canvas: &mut Canvas, scale: &Scale, floor: f64) {
    canvas.beside(&format!(
        "<rect class=\"ground\" y=\"{:.2}\" width=\"{}\" height=\"{:.2}\"/>\n",
        floor - scale.plot,
        MARGIN - 3.0,
        scale.plot + GAP
    ));
    // Fewer ticks in low panels, where names would touch.
    let parts = (scale.plot / 20.0) as u32;
    for (tick, label) in ticks::amounts(Bytes(scale.top as u64), parts) {
        let y = floor - scale.height(tick);
        let _ = writeln!(
            canvas.svg,
            "<path class=\"grid\" d=\"M{MARGIN} {y:.2}H{}\"/>",
            WIDTH - RIGHT
        );
        canvas.beside(&format!(
            "<text x=\"{}\" y=\"{:.2}\" text-anchor=\"end\" font-size=\"11\">{label}</text>\n",
            MARGIN - 6.0,
            y + 4.0
        ));
    }
}

/// Draws the limit and the measured amounts.
fn lines(svg: &mut String, curve: &Curve, scale: &Scale, floor: f64) {
    let end = WIDTH - RIGHT;
    if let Some(limit) = curve.limit.filter(|&limit| scale.shows(limit)) {
        let y = floor - scale.height(limit);
        // Above the line, if the plot has room there.
        let name = if y - floor + scale.plot > 16.0 {
            y - 4.0
        } else {
            y + 14.0
        };
        let _ = writeln!(
            svg,
            "<path class=\"lim\" d=\"M{MARGIN} {y:.2}H{end}\"/>\
             <text class=\"red halo\" x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">limit {limit}</text>",
            end - 4.0,
            name
        );
    }
    // Their names are in the legend and their amounts in the heading: names at the lines would be
    // written across a low curve.
    let marks = curve.marks.iter().zip(MARKS);
    for ((_, bytes), class) in marks.filter(|((_, bytes), _)| scale.shows(*bytes)) {
        let y = floor - scale.height(*bytes);
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" d=\"M{MARGIN} {y:.2}H{end}\"/>"
        );
    }
}
