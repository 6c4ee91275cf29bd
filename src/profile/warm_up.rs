//! The first runs of a chain, of which nobody knows how long they take.

use std::time::{Duration, Instant};

use super::chain::Chain;
use super::flow::Flow;
use super::measure::{MeasureTask, round};
use super::measurements::LayerSeries;
use super::watch::ProfileProgress;
use crate::error::Error;

/// What is measured in brief is measured no more often once it has taken so long.
pub(super) const MOST_IN_BRIEF: Duration = Duration::from_secs(3);

impl MeasureTask<'_> {
    /// The warm-up counts where it takes longer than this, and nothing is measured again: of one layer
    /// its budget; of all in a row more, as the first of them warm up for the others, but no more than
    /// a few seconds.
    pub(super) fn most_of_a_warm_up(&self, budget: Duration) -> Duration {
        const IN_A_ROW: u32 = 4;
        if self.options.low_memory {
            budget
        } else {
            (budget * IN_A_ROW).min(MOST_IN_BRIEF)
        }
    }

    /// Runs the chain for the first time at every size for which there is time; gives what leaves it.
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

/// Whether first runs take longer than `most` in all with one more at the next size, which takes as much
/// longer than the last by the sample as that did, or where one was run as it did.
fn takes_longer(sizes: &[usize], took: &[f64], most: Duration) -> bool {
    let next = match took {
        [] => return false,
        [first] => first * sizes[1] as f64 / sizes[0] as f64,
        _ => left(&sizes[..=took.len()], took),
    };
    took.iter().sum::<f64>() + next > most.as_secs_f64()
}

/// How many seconds the first runs at further sizes take, if they are longer by as much a sample as the
/// second is than the first. That is at least nothing: the very first one warms up for all.
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
        // The first one was slow by itself.
        assert_eq!(left(&[1, 2, 4, 8], &[70.0, 7.0]), 14.0);
        assert_eq!(left(&[4, 8], &[1.0, 2.0]), 0.0);
        assert_eq!(left(&[1, 2, 4, 8], &[1.0, 2.0, 4.0]), 8.0);
    }

    /// A first look at a small model beside other programs announced nine minutes for first runs.
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
