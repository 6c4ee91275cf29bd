//! Overview of a long model: a column per layer, and a line at every cut.

use super::rows::Row;
use crate::render::svg::canvas::{Canvas, MARGIN, RIGHT, WIDTH};
use crate::render::ticks;
use crate::units::Micros;
use std::fmt::Write as _;

/// Sizes in pixels.
const PLOT: f64 = 150.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 24.0;
/// Most ticks of the scale in addition to 0.
const ACROSS: u32 = 4;

/// Draws a column per row, as high as its time, with the stages named above.
pub(super) fn picture(stages: &[Vec<Row>]) -> String {
    let rows: usize = stages.iter().map(Vec::len).sum();
    let longest = stages
        .iter()
        .flatten()
        .map(Row::time)
        .max()
        .unwrap_or_default();
    let wide = (WIDTH - MARGIN - RIGHT) / rows.max(1) as f64;
    let label = "Time of each layer, with the cuts";
    let height = TOP + PLOT + BOTTOM;
    let mut svg = Canvas::within_a_page(height, Micros::ZERO, label, &words(stages)).svg;
    let floor = TOP + PLOT;
    let scale = PLOT / longest.get().max(f64::MIN_POSITIVE);
    for (time, label) in ticks::times(longest, ACROSS) {
        let y = floor - time.get() * scale;
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            svg,
            "<path class=\"tick\" d=\"M{MARGIN} {y:.2}h-4\"/>\
             <text x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">{label}</text>",
            MARGIN - 8.0,
            y + 4.0
        );
    }
    let mut x = MARGIN;
    for (stage, rows) in stages.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<path class=\"tick\" stroke-dasharray=\"4 3\" d=\"M{x:.2} 4V{floor}\"/>\
             <text x=\"{:.2}\" y=\"15\">{}</text>",
            x + 5.0,
            heading(stage, wide * rows.len() as f64)
        );
        for row in rows {
            column(&mut svg, row, x, wide, scale);
            x += wide;
        }
    }
    let _ = write!(
        svg,
        "<path class=\"tick\" d=\"M{MARGIN} {floor}H{x:.2}\"/>\
         <text x=\"{MARGIN}\" y=\"{0}\">first layer</text>\
         <text x=\"{x:.2}\" y=\"{0}\" text-anchor=\"end\">last layer</text>\n</svg>\n",
        floor + 17.0
    );
    format!(
        "<div class=\"chart\" role=\"group\" tabindex=\"0\" aria-label=\"Overview of the layers\">\n\
         {svg}</div>\n"
    )
}

/// Returns a stage's name, as far as there is room for it.
fn heading(stage: usize, pixels: f64) -> String {
    let names = [format!("stage {stage}"), stage.to_string()];
    let fits = |name: &String| 7.0 * name.len() as f64 + 6.0 < pixels;
    names.into_iter().find(fits).unwrap_or_default()
}

/// Draws the pieces of a row, from the floor.
fn column(svg: &mut String, row: &Row, x: f64, wide: f64, scale: f64) {
    let mut y = TOP + PLOT;
    for (kind, time) in [('F', row.forward), ('I', row.input), ('W', row.weight)] {
        let high = time.get() * scale;
        y -= high;
        let _ = write!(
            svg,
            "<rect class=\"sky\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{high:.2}\" \
             fill=\"url(#k{kind})\"/>",
            (wide * 0.92).min(wide - 0.1).max(0.2)
        );
    }
    svg.push('\n');
}

fn words(stages: &[Vec<Row>]) -> String {
    let said = stages.iter().enumerate().map(|(stage, rows)| {
        let layers: usize = rows.iter().map(|row| row.layers).sum();
        let time: Micros = rows.iter().map(Row::time).sum();
        format!("stage {stage}: {layers} layers, {time}")
    });
    said.collect::<Vec<_>>().join("; ")
}
