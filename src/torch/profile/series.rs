//! Repeated measurements of one duration.

/// Durations of the same work, in microseconds, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    /// First duration of the warm-up, not among the others.
    first: Option<f64>,
    /// Other durations of the warm-up, and whether they were disturbed.
    warm: Vec<(f64, bool)>,
    taken: Vec<f64>,
    /// Durations during which the thread had to wait for a core. They count only if there are too
    /// few undisturbed ones.
    disturbed: Vec<f64>,
}

/// 97.5 % of a normal distribution lie below this many standard deviations.
const Z: f64 = 1.96;
/// Number of undisturbed measurements from which disturbed ones are ignored.
const ENOUGH: usize = 6;

impl Series {
    /// Adds a duration of the warm-up; `first` if it includes one-time work.
    pub(super) fn warm_up(&mut self, micros: f64, disturbed: bool, first: bool) {
        self.first.get_or_insert(micros);
        if !first {
            self.warm.push((micros, disturbed));
        }
    }

    /// Counts the warm-up as measurements.
    pub(super) fn count_warm_up(&mut self) {
        for (micros, disturbed) in std::mem::take(&mut self.warm) {
            self.push(micros, disturbed);
        }
    }

    pub(super) fn push(&mut self, micros: f64, disturbed: bool) {
        if disturbed {
            self.disturbed.push(micros);
        } else {
            self.taken.push(micros);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.taken.len() + self.disturbed.len()
    }

    /// Returns the durations that count.
    fn counted(&self) -> Vec<f64> {
        if self.taken.len() >= ENOUGH {
            return self.taken.clone();
        }
        [&self.taken[..], &self.disturbed[..]].concat()
    }

    /// Returns the median; 0 if nothing was measured.
    pub(super) fn median(&self) -> f64 {
        median(&self.counted())
    }

    /// Returns the distance of the quartiles.
    pub(super) fn spread(&self) -> f64 {
        let (low, high) = self.quartiles();
        high - low
    }

    /// Returns the lower and the upper quartile.
    pub(super) fn quartiles(&self) -> (f64, f64) {
        let sorted = sorted(&self.counted());
        let at = |share: f64| {
            let place = (sorted.len().saturating_sub(1)) as f64 * share;
            sorted.get(place.round() as usize).copied().unwrap_or(0.0)
        };
        (at(0.25), at(0.75))
    }

    /// Returns half of the 95 % interval of the true median, from order statistics alone, since
    /// durations are not normally distributed. Infinite for fewer than six.
    pub(super) fn half_width(&self) -> f64 {
        let sorted = sorted(&self.counted());
        let count = sorted.len() as f64;
        let reach = Z * count.sqrt() / 2.0;
        let (low, high) = (count / 2.0 - reach, count / 2.0 + reach);
        if low < 0.0 || sorted.len() < 6 {
            return f64::INFINITY;
        }
        let last = sorted.len() - 1;
        let (low, high) = (low.floor() as usize, (high.ceil() as usize).min(last));
        (sorted[high] - sorted[low]) / 2.0
    }

    /// Returns the factor by which the last third took longer than the first; 1 for a short series.
    pub(super) fn drift(&self) -> f64 {
        let third = self.taken.len() / 3;
        if third < 5 {
            return 1.0;
        }
        let (first, last) = (
            &self.taken[..third],
            &self.taken[self.taken.len() - third..],
        );
        median(last) / median(first).max(f64::MIN_POSITIVE)
    }

    /// Returns the factor by which the first run took longer than the median.
    pub(super) fn first_over_median(&self) -> f64 {
        let median = self.median();
        match self.first {
            Some(first) if median > 0.0 => first / median,
            _ => 1.0,
        }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        even if even % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: impl IntoIterator<Item = f64>) -> Series {
        let mut series = Series::default();
        values
            .into_iter()
            .for_each(|value| series.push(value, false));
        series
    }

    #[test]
    fn medians_stand_outliers() {
        assert_eq!(series([]).median(), 0.0);
        assert_eq!(series([3.0, 1.0, 1e9]).median(), 3.0);
        assert_eq!(series([1.0, 2.0, 3.0, 1e9]).median(), 2.5);
        assert_eq!(series((0..100).map(|_| 7.0)).spread(), 0.0);
        assert_eq!(series((0..101).map(f64::from)).spread(), 50.0);
    }

    #[test]
    fn the_interval_shrinks_as_measurements_come() {
        let noise = |count: u32| series((0..count).map(|i| f64::from(i * 7919 % 101)));
        assert_eq!(noise(5).half_width(), f64::INFINITY);
        let widths = [10, 40, 400].map(|count| noise(count).half_width());
        assert!(widths[0] > widths[1] && widths[1] > widths[2], "{widths:?}");
        assert!(widths[2] < 6.0, "{widths:?}");
        // Six equal durations have no uncertainty.
        assert_eq!(series([2.0; 6]).half_width(), 0.0);
    }

    #[test]
    fn disturbed_measurements_count_where_there_are_no_others() {
        let mut series = Series::default();
        (0..9).for_each(|_| series.push(100.0, true));
        assert_eq!((series.median(), series.len()), (100.0, 9));
        (0..6).for_each(|_| series.push(10.0, false));
        assert_eq!((series.median(), series.len()), (10.0, 15));
    }

    #[test]
    fn a_warm_up_counts_where_it_is_to() {
        let mut series = Series::default();
        series.warm_up(90.0, false, true);
        series.warm_up(30.0, false, false);
        series.warm_up(40.0, true, false);
        assert_eq!(series.len(), 0);
        series.count_warm_up();
        assert_eq!((series.median(), series.len()), (35.0, 2));
        series.count_warm_up();
        assert_eq!(series.len(), 2);
    }

    #[test]
    fn drift_and_a_slow_start_are_seen() {
        let mut slow = series((0..60).map(|i| 100.0 + f64::from(i)));
        assert!(slow.drift() > 1.2, "{}", slow.drift());
        assert_eq!(series([1.0, 9.0]).drift(), 1.0);
        assert_eq!(slow.first_over_median(), 1.0);
        slow.warm_up(1295.0, false, true);
        slow.warm_up(1.0, false, true);
        assert_eq!(slow.first_over_median(), 10.0);
    }
}
