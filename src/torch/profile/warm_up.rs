//! First runs of a chain, whose duration is not known in advance.

use std::time::{Duration, Instant};

use super::chain::Chain;
use super::flow::Flow;
use super::measure::{MOST_IN_BRIEF, MeasureTask, round};
use super::measurements::LayerSeries;
use super::watch::ProfileProgress;
use crate::error::Error;

impl MeasureTask<'_> {
    /// Returns the warm-up time above which the warm-up counts and nothing is measured again: for
    /// one layer its budget; for all in sequence more, as the first layers warm up for the others,
    /// but no more than a few seconds.
    pub(super) fn most_of_a_warm_up(&self, budget: Duration) -> Duration {
        const IN_A_ROW: u32 = 4;
        if self.options.low_memory {
            budget
        } else {
            (budget * IN_A_ROW).min(MOST_IN_BRIEF)
        }
    }

    /// Runs the chain for the first time at every size that time allows; returns its outputs.
    pub(super) fn warm_up(
        &self,
        chain: &mut Chain,
        flows: &[Flow],
        series: &mut [Vec<LayerSeries>],
    ) -> Result<Vec<Flow>, Error> {
        let (mut outs, mut took) = (Vec::new(), Vec::new());
        let bounded = self.options.brief && !self.options.low_memory;
        for (flow, series) in flows.iter().zip(series) {
            if bounded && takes_longer(self.sizes, &took, self.options.first_runs) {
                break;
            }
            let start = Instant::now();
            outs.push(round(chain, flow, series, true)?);
            took.push(start.elapsed().as_secs_f64());
            if took.len() == 2 {
                let left = left(self.sizes, &took);
                self.watch.tell(ProfileProgress::FirstRuns { left });
            }
        }
        Ok(outs)
    }
}

/// Returns whether the first runs would take longer than `most` together with one more at the next
/// size. That run's time is extrapolated from the last two sizes, or in proportion if only one was
/// run.
fn takes_longer(sizes: &[usize], took: &[f64], most: Duration) -> bool {
    let next = match took {
        [] => return false,
        [first] => first * sizes[1] as f64 / sizes[0] as f64,
        _ => left(&sizes[..=took.len()], took),
    };
    took.iter().sum::<f64>() + next > most.as_secs_f64()
}

/// Estimates the seconds that first runs at further sizes take, with the extra time per sample
/// between the last two runs. That extra time is at least zero: the very first run warms up for
/// all.
fn left(sizes: &[usize], took: &[f64]) -> f64 {
    let (&[.., one, other], true) = (took, sizes.len() >= took.len()) else {
        return 0.0;
    };
    let (first, second) = (sizes[took.len() - 2], sizes[took.len() - 1]);
    let each = ((other - one) / second.saturating_sub(first).max(1) as f64).max(0.0);
    let further = sizes.iter().skip(took.len());
    further
        .map(|&size| other + each * size.saturating_sub(second) as f64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_first_runs_take_is_known_from_two_of_them() {
        assert_eq!(left(&[1, 2, 4, 8], &[1.0, 2.0]), 4.0 + 8.0);
        // The first run was slow by itself.
        assert_eq!(left(&[1, 2, 4, 8], &[70.0, 7.0]), 14.0);
        assert_eq!(left(&[4, 8], &[1.0, 2.0]), 0.0);
        assert_eq!(left(&[1, 2, 4, 8], &[1.0, 2.0, 4.0]), 8.0);
    }

    /// A first look at a small model beside other programs once predicted nine minutes of first
    /// runs.
    #[test]
    fn a_size_for_which_there_is_no_time_is_not_begun() {
        let sizes = [4, 8, 16, 32];
        let longer = |took: &[f64], most| takes_longer(&sizes, took, Duration::from_secs(most));
        assert!(!longer(&[], 0));
        // 10 + 20, and then 30 + 40.
        assert!(!longer(&[10.0], 30) && longer(&[10.0], 29));
        assert!(!longer(&[10.0, 20.0], 70) && longer(&[10.0, 20.0], 69));
        assert!(longer(&[40.0, 120.0], 200));
        assert!(!longer(&[0.1, 0.1, 0.1], 1));
    }
}
