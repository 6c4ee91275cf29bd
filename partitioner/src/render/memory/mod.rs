//! Memory over time: a device's levels as a picture, and in numbers.

mod curve;
mod svg;

pub(super) use curve::Curve;
pub(super) use svg::picture;

use super::page::{Table, percent, time};
use crate::units::{Bytes, Micros};

/// Most devices whose memory is drawn; all are in the table.
const MAX_CURVES: usize = 16;

/// Name of such bytes in the picture's legend and in the table.
const WORKING: &str = "needed while an action runs";

/// Returns the section of a page: `words` about it, the picture of a step that ends at `end`, and
/// the table.
pub(super) fn section(mut curves: Vec<Curve>, end: Micros, words: &str) -> String {
    let table = table(&curves);
    let all = curves.len();
    curves.sort_by_key(|curve| std::cmp::Reverse(curve.peak().bytes));
    curves.truncate(MAX_CURVES);
    curves.sort_by_key(|curve| curve.device);
    let which = if curves.len() < all {
        format!(" The {MAX_CURVES} fullest of {all} devices are drawn.")
    } else {
        String::new()
    };
    format!(
        "<p>{words} All devices have one scale, and the part of the step that is shown is the timeline\u{2019}s.{which}</p>\n<div class=\"chart\" role=\"group\" \
         tabindex=\"0\" aria-label=\"Memory over time\">\n{}</div>\n{table}",
        picture(&curves, end)
    )
}

/// A column: its name, a curve's cell, and the text for an empty cell.
type Column = (&'static str, fn(&Curve) -> Option<String>, &'static str);

const NOTHING: &str = "0 B";
const UNKNOWN: &str = "\u{2013}";
const COLUMNS: [Column; 9] = [
    ("parameters", |own| amount(own.standing[0]), NOTHING),
    ("optimizer state", |own| amount(own.standing[1]), NOTHING),
    ("gradients", |own| amount(own.parts().gradients), NOTHING),
    (
        "activations",
        |own| amount(own.parts().activations),
        NOTHING,
    ),
    (WORKING, |own| amount(own.parts().working), NOTHING),
    ("peak", |own| Some(own.peak().bytes.to_string()), NOTHING),
    ("at", |own| Some(time(own.peak().time)), UNKNOWN),
    ("limit", |own| own.limit.map(|own| own.to_string()), UNKNOWN),
    ("of the limit", share, UNKNOWN),
];

/// Formats a nonzero amount.
fn amount(bytes: Bytes) -> Option<String> {
    (bytes > Bytes::ZERO).then(|| bytes.to_string())
}

fn share(curve: &Curve) -> Option<String> {
    let limit = curve.limit?.get().max(1);
    Some(percent(curve.peak().bytes.get() as f64 / limit as f64))
}

/// Returns the table of the parts of the peaks. Columns without any value are omitted.
fn table(curves: &[Curve]) -> String {
    let there = |(_, cell, _): &&Column| curves.iter().any(|curve| cell(curve).is_some());
    let columns: Vec<&Column> = COLUMNS.iter().filter(there).collect();
    let mut names = vec!["device"];
    names.extend(columns.iter().map(|(name, ..)| *name));
    let mut table = Table::new("What each device holds at its peak", &names);
    for curve in curves {
        let cells = columns.iter();
        let cells = cells.map(|(_, cell, none)| cell(curve).unwrap_or_else(|| (*none).to_owned()));
        table.row(&curve.device.to_string(), &cells.collect::<Vec<_>>());
    }
    table.finish()
}
