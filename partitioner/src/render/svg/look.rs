//! Appearance of kinds of work: colours, hatchings, and the shades of chunks.

use crate::schedule::ActionKind;
use std::fmt::Write as _;

/// Appearance of a kind: light enough for black text, and with its own hatching so that the kinds differ
/// without colours.
pub(super) struct Look {
    pub(super) name: &'static str,
    /// Red, green and blue, one byte each.
    color: u32,
    hatch: &'static str,
}

pub(super) const fn look(kind: ActionKind) -> Look {
    let (name, color, hatch) = match kind {
        ActionKind::Forward => ("forward (F)", 0x8e_c8f2, ""),
        ActionKind::Backward => ("backward (B)", 0x8f_d3a4, "M0 10L10 0"),
        ActionKind::BackwardInput => ("input gradient (I)", 0xf6_bd62, "M0 1.5H10"),
        ActionKind::BackwardWeight => ("weight gradient (W)", 0xc4_a5e8, "M0 0L10 10"),
        ActionKind::Recompute => ("recompute (R)", 0xe3_e3e3, "M0 0L10 10M0 10L10 0"),
    };
    Look { name, color, hatch }
}

/// Appearance of gradients that replicas exchange.
pub(super) const EXCHANGE: Look = Look {
    name: "all-reduce (A)",
    color: 0xf3_a6b5,
    hatch: "M0 1.5H10M5 0V10",
};

/// Most shades of a colour that an eye can distinguish.
const SHADES: usize = 6;

/// Shade of a chunk among `chunks`, from 0.
pub(super) const fn shade(chunk: usize, chunks: usize) -> usize {
    if chunks <= SHADES {
        chunk
    } else {
        chunk * SHADES / chunks
    }
}

/// Colours of everything but the bars, for light and dark backgrounds. Labels have a rim in their bar's
/// colour, so that the hatching does not cross them out.
const STYLE: &str = "<style>\
.tl{background:#fff}.tl text{fill:#15181c}.tl .ground{fill:#fff}.tl .lane{fill:#e6eaee}.tl .tick{stroke:#333}\
.tl .end{stroke:#333;stroke-dasharray:4 3}\
.tl g rect,.tl .key{stroke:#333;stroke-width:.6}\
.tl g .n{stroke:none}\
.tl g text{fill:#000;text-anchor:middle;paint-order:stroke;stroke-width:2px;stroke-linejoin:round;font-size:10.5px}\
.tl g .s{font-size:8.5px}.tl g .t{font-size:7.5px}.tl .side,.tl .axis{overflow:visible}\
.tl g:hover rect{stroke:#000;stroke-width:2.5}\
@media (prefers-color-scheme:dark){\
.tl{background:#15171b}.tl text{fill:#eceff3}.tl .ground{fill:#15171b}.tl .lane{fill:#262a31}.tl .tick,.tl .end{stroke:#bbb}\
.tl g text{fill:#000}.tl g:hover rect{stroke:#fff}}";

/// Writes style and patterns of every picture.
pub(super) fn definitions(svg: &mut String) {
    svg.push_str(STYLE);
    for kind in ActionKind::ALL {
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            svg,
            ".tl .{} text{{stroke:#{:06x}}}",
            kind.letter(),
            look(kind).color
        );
    }
    svg.push_str("</style>\n<defs>\n");
    for kind in ActionKind::ALL {
        let Look { color, hatch, .. } = look(kind);
        pattern(svg, &kind.letter().to_string(), color, hatch);
    }
    svg.push_str("</defs>\n");
}

/// Writes the patterns of these kinds for `chunks` chunks per device: the first is darker than the
/// kind's own colour, later ones get lighter.
pub(super) fn shades(svg: &mut String, kinds: &[ActionKind], chunks: usize) {
    let last = shade(chunks - 1, chunks);
    let each = || (kinds.iter()).flat_map(|&kind| (0..=last).map(move |shade| (kind, shade)));
    let color = |kind, shade: usize| shaded(look(kind).color, shade as f64 / last.max(1) as f64);
    svg.push_str("<style>");
    for (kind, shade) in each() {
        let _ = write!(
            svg,
            ".tl .{}.c{shade} text{{stroke:#{:06x}}}",
            kind.letter(),
            color(kind, shade)
        );
    }
    svg.push_str("</style>\n<defs>\n");
    for (kind, shade) in each() {
        let name = format!("{}{shade}", kind.letter());
        pattern(svg, &name, color(kind, shade), look(kind).hatch);
    }
    svg.push_str("</defs>\n");
}

/// Writes pattern and rim of exchanges.
pub(super) fn exchange(svg: &mut String) {
    let Look { color, hatch, .. } = EXCHANGE;
    svg.push_str("<defs>");
    pattern(svg, "A", color, hatch);
    let _ = writeln!(
        svg,
        "</defs><style>.tl .A text{{stroke:#{color:06x}}}</style>"
    );
}

/// A third of a row's distance to the next in height, so that a hatching is the same in all rows: lines
/// across pass above and below a label.
fn pattern(svg: &mut String, name: &str, color: u32, hatch: &str) {
    let _ = writeln!(
        svg,
        "<pattern id=\"k{name}\" width=\"10\" height=\"10\" patternUnits=\"userSpaceOnUse\">\
         <rect width=\"10\" height=\"10\" fill=\"#{color:06x}\"/>\
         <path d=\"{hatch}\" stroke=\"#000\" stroke-opacity=\".3\"/></pattern>"
    );
}

/// Mixes a colour with some black at 0, and with much white at 1.
fn shaded(color: u32, at: f64) -> u32 {
    const BLACK: f64 = 0.14;
    const WHITE: f64 = 0.56;
    let mixed = |byte: f64| {
        let dark = byte * (1.0 - BLACK);
        let light = byte + (255.0 - byte) * WHITE;
        (dark + (light - dark) * at).round() as u32
    };
    let byte = |shift: u32| mixed(f64::from(color >> shift & 0xff)) << shift;
    byte(16) | byte(8) | byte(0)
}

/// Lightness of a colour, 0 to 1, by the formula of WCAG 2.2.
#[cfg(test)]
pub(in crate::render) fn light(color: u32) -> f64 {
    let channel = |shift: u32| {
        let c = f64::from(color >> shift & 0xff) / 255.0;
        if c <= 0.040_45 {
            c / 12.92
        } else {
            ((c + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * channel(16) + 0.7152 * channel(8) + 0.0722 * channel(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_differ_and_black_names_are_readable_on_all_of_them() {
        for kind in ActionKind::ALL {
            for chunks in 2..=SHADES {
                let color =
                    |chunk: usize| shaded(look(kind).color, chunk as f64 / (chunks - 1) as f64);
                assert!((light(color(0)) + 0.05) / 0.05 > 7.0);
                for chunk in 1..chunks {
                    let lighter = (light(color(chunk)) + 0.05) / (light(color(chunk - 1)) + 0.05);
                    assert!(lighter > 1.05, "{kind:?} {chunk} of {chunks}: {lighter}");
                }
            }
        }
    }

    #[test]
    fn more_chunks_than_shades_take_them_in_order() {
        let shades: Vec<usize> = (0..12).map(|chunk| shade(chunk, 12)).collect();
        assert_eq!(shades, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!((shade(1, 2), shade(5, 6)), (1, 5));
    }
}
