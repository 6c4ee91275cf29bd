//! The familiar timeline as text: one row a device.

use super::grid::one_stage_each;
use crate::ids::DeviceId;
use crate::schedule::Kind;
use crate::timeline::{Span, Timeline};
use std::fmt::Write as _;

/// One row a device, in at most `width` columns (at least 20), readable without
/// colour: an action starts with its name where that fits, and goes on with its
/// kind's sign (F `>`, B `<`, I `-`, W `=`, R `~`); `.` is idle. The stage is
/// left out where each device has one. Below: the time axis, the bubble, and the signs
/// where there is room for them.
pub fn text(timeline: &Timeline, width: usize) -> String {
    let margin = format!("dev {} |", timeline.devices().saturating_sub(1)).len();
    let columns = width.clamp(20, 10_000).saturating_sub(margin + 1).max(1);
    let one_stage = one_stage_each(timeline);
    let mut picture = String::new();
    for device in 0..timeline.devices() {
        let name = format!("dev {device}");
        let row = row(timeline, DeviceId(device), columns, one_stage);
        // Writing to a String cannot fail.
        let _ = writeln!(picture, "{name:<w$}|{row}|", w = margin - 1);
    }
    let makespan = timeline.makespan().to_string();
    let axis = format!(
        "{:margin$}0{makespan:>w$}",
        "",
        w = columns.saturating_sub(1)
    );
    picture.push_str(axis.trim_end());
    let bubble = format!("bubble {:.1} %", 100.0 * timeline.bubble_fraction());
    let legend = format!("{bubble}   {}", legend(timeline));
    let fits = legend.len() <= width.min(margin + columns + 1);
    let _ = write!(picture, "\n{}\n", if fits { legend } else { bubble });
    picture
}

/// The signs of the kinds that occur.
fn legend(timeline: &Timeline) -> String {
    let mut legend = String::new();
    for kind in Kind::ALL {
        if timeline.spans().iter().any(|span| span.action.kind == kind) {
            let name = match kind {
                Kind::Forward => "forward",
                Kind::Backward => "backward",
                Kind::BackwardInput => "input gradient",
                Kind::BackwardWeight => "weight gradient",
                Kind::Recompute => "recompute",
            };
            // Writing to a String cannot fail.
            let _ = write!(legend, "{}{} {name}  ", kind.letter(), sign(kind));
        }
    }
    legend + ". idle"
}

/// The sign that fills an action of a kind.
const fn sign(kind: Kind) -> char {
    match kind {
        Kind::Forward => '>',
        Kind::Backward => '<',
        Kind::BackwardInput => '-',
        Kind::BackwardWeight => '=',
        Kind::Recompute => '~',
    }
}

fn row(timeline: &Timeline, device: DeviceId, columns: usize, one_stage: bool) -> String {
    let mut cells = vec!['.'; columns];
    let scale = columns as f64 / timeline.makespan().get().max(f64::MIN_POSITIVE);
    for span in timeline.spans_on(device) {
        let first = (span.start.get() * scale).round() as usize;
        let last = (span.end.get() * scale).round() as usize;
        let label = label(span, last.saturating_sub(first), one_stage);
        let signs = label
            .chars()
            .chain(std::iter::repeat(sign(span.action.kind)));
        for (cell, sign) in cells.iter_mut().take(last).skip(first).zip(signs) {
            *cell = sign;
        }
    }
    cells.into_iter().collect()
}

/// The longest name of the span that leaves room in `width` columns: with the
/// stage, without it, the letter alone, nothing.
fn label(span: &Span, width: usize, one_stage: bool) -> String {
    let full = span.action.to_string();
    let short = full.trim_start_matches(|c: char| c.is_ascii_digit());
    let names = [if one_stage { short } else { &full }, short, &short[..1]];
    names
        .into_iter()
        .find(|name| name.len() < width)
        .unwrap_or("")
        .to_owned()
}
