//! Columns of jitter and failures in a table of a sweep.

use super::{SweepOutcome, SweepPoint};
use crate::units::Micros;
use crate::words::{count, given_time};

/// Columns of jitter and failures, each present if a point of the sweep has such a risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiskColumns {
    jitter: bool,
    failures: bool,
}

impl RiskColumns {
    /// Returns the columns for a table of these points.
    pub fn of(points: &[SweepPoint]) -> Self {
        Self {
            jitter: points.iter().any(|point| point.risk.jitter.is_some()),
            failures: points.iter().any(|point| point.risk.failures.is_some()),
        }
    }

    /// Titles of the risks.
    pub fn given_titles(self) -> Vec<&'static str> {
        self.there(["jitter"], ["failure every"])
    }

    /// Titles of their outcomes.
    pub fn found_titles(self) -> Vec<&'static str> {
        self.there(["95 % of steps within"], ["checkpoint every", "goodput"])
    }

    /// Returns the risks of a point, in a cell for each title.
    pub fn given(self, point: &SweepPoint) -> Vec<String> {
        let between = point.risk.failures.map(|own| own.between());
        self.there(
            [format!("{} %", jitter_percent(point))],
            [between.map_or_else(String::new, given_time)],
        )
    }

    /// Returns the outcomes, in a cell for each title.
    pub fn found(self, outcome: &SweepOutcome) -> Vec<String> {
        let late = outcome.jittered.map(|own| own.late.to_string());
        let interval = outcome.interval;
        let goodput = |share: f64| format!("{:.1} %", 100.0 * share);
        let interval = interval.map(|own| [count(own.steps, "step"), goodput(own.goodput)]);
        self.there([late.unwrap_or_default()], interval.unwrap_or_default())
    }

    fn there<T, const N: usize>(self, jitter: [T; 1], failures: [T; N]) -> Vec<T> {
        let jitter = jitter.into_iter().filter(|_| self.jitter);
        jitter
            .chain(failures.into_iter().filter(|_| self.failures))
            .collect()
    }
}

/// Jitter of a point in percent, with two decimals.
pub(crate) fn jitter_percent(point: &SweepPoint) -> f64 {
    let share = point.risk.jitter.map_or(0.0, |own| own.share());
    (1e4 * share).round() / 100.0
}

/// Mean time between failures of a point, in microseconds; infinite without failures.
pub(crate) fn between_failures(point: &SweepPoint) -> f64 {
    let between = point.risk.failures.map(|own| own.between());
    between.map_or(f64::INFINITY, Micros::get)
}
