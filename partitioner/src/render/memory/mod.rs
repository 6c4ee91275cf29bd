//! Memory over time: a device's levels as a picture, and in numbers.

mod curve;
mod svg;

pub(super) use curve::{Curve, Parts};
pub(super) use svg::picture;

use super::page::{Table, percent};
use crate::units::{Bytes, Micros};

/// The most devices whose memory is drawn; all are in the table.
const MAX_CURVES: usize = 16;

/// The section of a page: `words` about it, the picture of a step that ends at `end`, and the
/// table.
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
        "<p>{words} All devices have one scale.{which}</p>\n<div class=\"chart\" role=\"group\" \
         tabindex=\"0\" aria-label=\"Memory over time\">\n{}</div>\n{table}",
        picture(&curves, end)
    )
}

/// The curves in numbers: what the peak consists of.
fn table(curves: &[Curve]) -> String {
    let columns = [
        "device",
        "parameters",
        "optimizer state",
        "gradients",
        "activations",
        "an action\u{2019}s own",
        "peak",
        "at",
        "limit",
        "of the limit",
    ];
    let mut table = Table::new("What each device holds at its peak", &columns);
    for curve in curves {
        let peak = curve.peak();
        let [parameters, optimizer] = curve.standing;
        let Parts {
            gradients,
            activations,
            working,
        } = curve.parts();
        let dash = || "\u{2013}".to_owned();
        let share = |limit: Bytes| percent(peak.bytes.get() as f64 / limit.get().max(1) as f64);
        table.row(
            &curve.device.to_string(),
            &[
                parameters.to_string(),
                optimizer.to_string(),
                gradients.to_string(),
                activations.to_string(),
                working.to_string(),
                peak.bytes.to_string(),
                peak.time.to_string(),
                curve.limit.map_or_else(dash, |limit| limit.to_string()),
                curve.limit.map_or_else(dash, share),
            ],
        );
    }
    table.finish()
}
