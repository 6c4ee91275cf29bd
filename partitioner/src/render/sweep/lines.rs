//! The axis of a chart, and the points of its lines.

use std::collections::BTreeSet;

use crate::sweep::SweepPoint;
use crate::sweep::columns::{between_failures, jitter_percent};
use crate::units::Micros;
use crate::words::{count, given_time};

/// Parameter along the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    MicroBatches,
    Devices,
    Chunks,
    /// In percent.
    Jitter,
    /// Mean time between failures, in microseconds.
    Failures,
}

impl Axis {
    const ALL: [Self; 5] = [
        Self::MicroBatches,
        Self::Devices,
        Self::Chunks,
        Self::Jitter,
        Self::Failures,
    ];

    pub(super) fn of(self, point: &SweepPoint) -> f64 {
        let number = match self {
            Self::MicroBatches => point.shape.micro_batches,
            Self::Devices => point.shape.devices,
            Self::Chunks => point.shape.chunks,
            Self::Jitter => return jitter_percent(point),
            Self::Failures => return between_failures(point),
        };
        number as f64
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::MicroBatches => "micro-batches",
            Self::Devices => "devices",
            Self::Chunks => "chunks",
            Self::Jitter => "jitter",
            Self::Failures => "mean time between failures",
        }
    }

    /// Describes a point's value: `8 micro-batches`.
    pub(super) fn words(self, point: &SweepPoint) -> String {
        let number = self.of(point);
        match self {
            Self::MicroBatches => count(number as usize, "micro-batch"),
            Self::Devices => count(number as usize, "device"),
            Self::Chunks => count(number as usize, "chunk"),
            Self::Jitter => format!("jitter of {}", self.label(number)),
            Self::Failures if number.is_infinite() => "no failures".to_owned(),
            Self::Failures => format!("a failure every {}", self.label(number)),
        }
    }

    /// Formats a value below the chart.
    pub(super) fn label(self, value: f64) -> String {
        match self {
            Self::Jitter => format!("{value} %"),
            Self::Failures => given_time(Micros::saturating(value)),
            _ => value.to_string(),
        }
    }

    /// Returns the distinct values, in increasing order.
    pub(super) fn values(self, points: &[SweepPoint]) -> Vec<f64> {
        let mut values: Vec<f64> = points.iter().map(|point| self.of(point)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }
}

/// Spacing of values on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spacing {
    /// Proportional to differences.
    Linear,
    /// Proportional to ratios.
    Log,
    /// Even, whatever the values.
    Even,
}

impl Spacing {
    /// Chooses the spacing by differences or ratios that keeps neighbours further apart, if at least
    /// `least` of the width; returns it with the relative position of each of the increasing values.
    pub(super) fn of(values: &[f64], least: f64) -> (Self, Vec<f64>) {
        let [Some(&first), Some(&last)] = [values.first(), values.last()] else {
            return (Self::Even, Vec::new());
        };
        let spread = |map: fn(f64) -> f64| -> Vec<f64> {
            let (from, length) = (map(first), map(last) - map(first));
            let place = |&value: &f64| (map(value) - from) / length;
            values.iter().map(place).collect()
        };
        if values.len() > 2 && last.is_finite() {
            let mut found = (Self::Linear, spread(|value| value));
            if first > 0.0 {
                let log = spread(f64::ln);
                if closest(&log) > closest(&found.1) {
                    found = (Self::Log, log);
                }
            }
            if closest(&found.1) >= least {
                return found;
            }
        }
        let steps = (values.len() as f64 - 1.0).max(1.0);
        let even = (0..values.len()).map(|place| place as f64 / steps);
        let spacing = if values.len() > 2 {
            Self::Even
        } else {
            Self::Linear
        };
        (spacing, even.collect())
    }

    /// Returns the remark after the name of the axis.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Linear => "",
            Self::Log => " (logarithmic scale)",
            Self::Even => " (values evenly apart)",
        }
    }
}

/// Smallest distance of neighbours.
fn closest(shares: &[f64]) -> f64 {
    let gaps = shares.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.fold(f64::INFINITY, f64::min)
}

/// Points of a line: a schedule, with fixed values of the other axes.
pub(super) struct Line<'a> {
    pub(super) name: String,
    pub(super) points: Vec<&'a SweepPoint>,
}

/// Returns the axis with the most values; the first among equals.
pub(super) fn along(points: &[SweepPoint]) -> Axis {
    let count = |axis: &Axis| {
        if is_swept(*axis, points) {
            axis.values(points).len()
        } else {
            0
        }
    };
    let most = Axis::ALL.into_iter().rev().max_by_key(count);
    most.unwrap_or(Axis::MicroBatches)
}

/// Whether points differ only in this axis. Numbers of chunks may differ only because each schedule has
/// its usual one; these form no line.
pub(super) fn is_swept(axis: Axis, points: &[SweepPoint]) -> bool {
    let key = |point: &SweepPoint, without: Option<Axis>| {
        let own = |other: Axis| match without {
            Some(without) if without == other => 0,
            _ => other.of(point).to_bits(),
        };
        (point.schedule.name(), Axis::ALL.map(own))
    };
    let different = |without| {
        let keys = points.iter().map(|point| key(point, without));
        keys.collect::<BTreeSet<_>>().len()
    };
    different(Some(axis)) < different(None)
}

/// Returns the lines along this axis, each with its points in order.
pub(super) fn lines(along: Axis, points: &[SweepPoint]) -> Vec<Line<'_>> {
    let others: Vec<Axis> = Axis::ALL
        .into_iter()
        .filter(|axis| *axis != along && is_swept(*axis, points))
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for point in points.iter().filter(|point| point.outcome.is_ok()) {
        let mut name = point.schedule.to_string();
        for axis in &others {
            name = format!("{name}, {}", axis.words(point));
        }
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
            }),
        }
    }
    for line in &mut lines {
        (line.points).sort_by(|a, b| along.of(a).total_cmp(&along.of(b)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: 0, 2, 5 and 10 % were evenly spaced, which bent a nearly straight line.
    #[test]
    fn values_are_where_they_belong_as_far_as_labels_have_room() {
        let of = |values: &[f64]| Spacing::of(values, 0.05);
        assert_eq!(
            of(&[0.0, 2.0, 5.0, 10.0]),
            (Spacing::Linear, vec![0.0, 0.2, 0.5, 1.0])
        );
        // Doublings are evenly spaced, and so are equal differences.
        let (spacing, shares) = of(&[8.0, 16.0, 32.0, 64.0]);
        assert_eq!(spacing, Spacing::Log);
        assert!((shares[1] - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(of(&[2.0, 4.0, 6.0]), (Spacing::Linear, vec![0.0, 0.5, 1.0]));
        let (spacing, shares) = of(&[1.0, 4.0, 16.0, 256.0]);
        assert_eq!(spacing, Spacing::Log);
        assert!((shares[1] - 0.25).abs() < 1e-12 && (shares[2] - 0.5).abs() < 1e-12);
        // 0 has no logarithm, and no failures are infinitely far apart.
        for values in [&[0.0, 1.0, 100.0], &[1.0, 2.0, f64::INFINITY]] {
            assert_eq!(of(values), (Spacing::Even, vec![0.0, 0.5, 1.0]));
        }
        assert_eq!(of(&[8.0]), (Spacing::Linear, vec![0.0]));
        assert_eq!(of(&[8.0, 16.0]), (Spacing::Linear, vec![0.0, 1.0]));
    }
}
