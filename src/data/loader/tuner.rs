//! Tunes the numbers of workers and prefetched batches while batches are taken.
//!
//! After a window of some batches, the tuner looks at its measures and tries one change:
//!
//! | the training | and the workers | it tries |
//! |---|---|---|
//! | waits | are at work nearly all the time | a worker more |
//! | waits | are idle for a part of it | twice as many batches ahead |
//! | does not wait | could do it with one less | a worker less |
//!
//! The next window decides whether to keep the change: more of anything must be faster, less must not
//! be slower. A rejected change is not retried for some windows, and for twice as many the next time.
//! The batches do not depend on the tuner.

use crate::InputMeasures;

/// Minimum batches and milliseconds of a window.
pub(super) const WINDOW: (u64, f64) = (16, 100.0);
/// Upper bound of prefetched batches.
pub(super) const MOST_AHEAD: usize = 64;
/// Upper bound of batches in flight if the size of a batch is unknown.
const MOST_UNKNOWN: usize = 8;

/// Less waiting than this share of the time counts as none.
const WAITS: f64 = 0.02;
/// Workers that are busy for less than this share make batches unevenly.
const AT_WORK: f64 = 0.8;
/// A worker is removed on trial if the others would be busy for less than this share.
const SPARE: f64 = 0.7;
/// Relative period that more of something must reach, and that less may cost.
const FASTER: f64 = 0.98;
const NOT_SLOWER: f64 = 1.02;
/// Windows without a trial after a rejected one, at first and at most.
const REST: (u32, u32) = (2, 64);

/// Numbers of workers and prefetched batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) workers: usize,
    pub(super) ahead: usize,
}

/// Limits of tuning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Upper bound of workers, if tuned.
    pub(super) workers: Option<usize>,
    /// Whether prefetching is tuned.
    pub(super) ahead: bool,
    /// Byte limit of batches in flight.
    pub(super) memory: u64,
}

/// Tries one setting after another.
#[derive(Debug)]
pub(super) struct Tuner {
    bounds: Bounds,
    now: Way,
    /// The setting before the current trial, its time per batch, and the factor that the trial must
    /// reach.
    trial: Option<(Way, f64, f64)>,
    rest: u32,
    next_rest: u32,
}

impl Tuner {
    pub(super) fn new(now: Way, bounds: Bounds) -> Self {
        Self {
            bounds,
            now,
            trial: None,
            rest: 0,
            next_rest: REST.0,
        }
    }

    /// Returns the setting for the next window.
    pub(super) fn next(&mut self, window: &InputMeasures) -> Way {
        if let Some((before, period, share)) = self.trial.take() {
            if window.period_ms > share * period {
                self.now = before;
                self.rest = self.next_rest;
                self.next_rest = (2 * self.next_rest).min(REST.1);
                return self.now;
            }
            self.next_rest = REST.0;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return self.now;
        }
        if let Some((way, share)) = self.change(window) {
            self.trial = Some((self.now, window.period_ms, share));
            self.now = way;
        }
        self.now
    }

    /// Returns the next change to try, and the factor that it must reach.
    fn change(&self, window: &InputMeasures) -> Option<(Way, f64)> {
        let Way { workers, ahead } = self.now;
        let most = self.bounds.workers;
        let busy = window.busy_workers();
        let way = if window.wait_share() > WAITS {
            let more = Way {
                workers: workers + 1,
                ahead,
            };
            let more = most.filter(|most| workers < *most).map(|_| more);
            let farther = Way {
                workers,
                ahead: (2 * ahead.max(1)).min(MOST_AHEAD),
            };
            let farther = (self.bounds.ahead && farther.ahead > ahead).then_some(farther);
            if busy < AT_WORK * workers as f64 {
                farther.or(more)
            } else {
                more
            }
            .map(|way| (way, FASTER))
        } else {
            let fewer = workers.saturating_sub(1);
            let spare = most.is_some() && fewer > 0 && busy < SPARE * fewer as f64;
            let way = Way {
                workers: fewer,
                ahead,
            };
            spare.then_some((way, NOT_SLOWER))
        };
        way.filter(|(way, _)| self.fits(*way, window))
    }

    /// Whether the batches in flight fit into memory: one per worker, the prefetched ones, one ready to
    /// be handed over, and the one taken.
    fn fits(&self, way: Way, window: &InputMeasures) -> bool {
        let batches = way.workers + way.ahead + 2;
        let before = self.now.workers + self.now.ahead + 2;
        batches <= before
            || match window.batch_bytes {
                Some(bytes) => bytes.saturating_mul(batches as u64) <= self.bounds.memory,
                None => batches <= MOST_UNKNOWN,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PhaseTime;

    const MEMORY: u64 = 1000;

    fn tuner(workers: usize, ahead: usize) -> Tuner {
        let bounds = Bounds {
            workers: Some(4),
            ahead: true,
            memory: MEMORY,
        };
        Tuner::new(Way { workers, ahead }, bounds)
    }

    /// A window with steps of 10 ms, and this much loading time per worker.
    fn window(way: Way, work: f64, bytes: u64) -> InputMeasures {
        let mut window = InputMeasures {
            period_ms: (work / way.workers as f64).max(10.0),
            workers: way.workers,
            prefetch: way.ahead,
            batch_bytes: Some(bytes),
            ..InputMeasures::default()
        };
        window.waited_ms = window.period_ms - 10.0;
        window.phases[0] = PhaseTime {
            wall_ms: work,
            cpu_ms: work,
        };
        window
    }

    /// Returns the setting after so many windows.
    fn settled(mut tuner: Tuner, windows: usize, of: impl Fn(Way) -> InputMeasures) -> Way {
        (0..windows).fold(tuner.now, |way, _| tuner.next(&of(way)))
    }

    #[test]
    fn it_takes_as_many_workers_as_the_step_needs_and_no_more() {
        for (work, workers) in [(5.0, 1), (19.0, 2), (29.0, 3), (200.0, 4)] {
            let way = settled(tuner(1, 2), 12, |way| window(way, work, 1));
            assert_eq!(way, Way { workers, ahead: 2 }, "{work} ms");
        }
        let way = settled(tuner(4, 2), 12, |way| window(way, 5.0, 1));
        assert_eq!(way.workers, 1);
    }

    #[test]
    fn what_brings_nothing_is_taken_back() {
        // A second worker does not help.
        let way = settled(tuner(1, 2), 40, |way| {
            let mut window = window(way, 40.0, 1);
            window.period_ms = 40.0;
            window.waited_ms = 30.0;
            window.phases[0].wall_ms = 40.0 * way.workers as f64;
            window
        });
        assert!(way.workers <= 2);
        let mut tuner = tuner(1, 2);
        let slow = |way| {
            let mut window = window(way, 40.0, 1);
            window.period_ms = 40.0;
            window
        };
        let mut ways = vec![tuner.now];
        for _ in 0..20 {
            let way = tuner.next(&slow(tuner.now));
            ways.push(way);
        }
        // The rest doubles after each rejection: 1 window with two workers, then 2, 4 and 8 without.
        let twos: Vec<usize> = (0..ways.len()).filter(|&n| ways[n].workers == 2).collect();
        assert_eq!(twos, [1, 5, 11], "{ways:?}");
    }

    #[test]
    fn uneven_batches_are_made_ahead_within_memory() {
        let uneven = |way: Way| {
            let mut window = window(way, 5.0, 100);
            // More prefetching means less waiting.
            window.waited_ms = 8.0 / way.ahead as f64;
            window.period_ms = 10.0 + window.waited_ms;
            window
        };
        // One in the worker, one ready, one taken: of a thousand bytes, seven are left.
        let way = settled(tuner(1, 2), 20, uneven);
        assert_eq!(
            way,
            Way {
                workers: 1,
                ahead: 4
            }
        );
        let unknown = |way| InputMeasures {
            batch_bytes: None,
            ..uneven(way)
        };
        let way = settled(tuner(1, 2), 20, unknown);
        assert_eq!(
            way,
            Way {
                workers: 1,
                ahead: 4
            }
        );
    }

    #[test]
    fn memory_bounds_workers_too() {
        let way = settled(tuner(1, 2), 20, |way| window(way, 200.0, MEMORY / 6));
        assert_eq!(
            way,
            Way {
                workers: 2,
                ahead: 2
            }
        );
    }

    #[test]
    fn what_is_fixed_stays() {
        let bounds = Bounds {
            workers: None,
            ahead: false,
            memory: MEMORY,
        };
        let fixed = Tuner::new(
            Way {
                workers: 2,
                ahead: 3,
            },
            bounds,
        );
        let way = settled(fixed, 10, |way| window(way, 200.0, 1));
        assert_eq!(
            way,
            Way {
                workers: 2,
                ahead: 3
            }
        );
    }
}
