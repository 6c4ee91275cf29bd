//! Memory over time: a device's levels as a picture, and in numbers.

mod curve;
mod svg;

pub(super) use curve::{Curve, Parts};
pub(super) use svg::picture;

use super::page::{Table, percent};
use crate::units::Bytes;

/// The curves in numbers: what the peak consists of.
pub(super) fn table(curves: &[Curve]) -> String {
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
