//! Workers and batches ahead, found while batches are taken.
//!
//! After a window of some batches the tuner looks at what was measured of it, and tries one change:
//!
//! | the training | and the workers | it tries |
//! |---|---|---|
//! | waits | are at work nearly all the time | a worker more |
//! | waits | are idle for a part of it | twice as many batches ahead |
//! | does not wait | could do it with one less | a worker less |
//!
//! The next window tells whether to keep it: more of anything has to be faster, less must not be
//! slower. What was not kept is not tried again for some windows, and for twice as many the
//! next time. The batches are the same whatever it does.

use crate::InputMeasures;

/// Batches and milliseconds that a window has at least.
pub(super) const WINDOW: (u64, f64) = (16, 100.0);
/// The most batches ahead that are tried.
pub(super) const MOST_AHEAD: usize = 64;
/// The most batches in flight where it is not known how many bytes one has.
const MOST_UNKNOWN: usize = 8;

/// Less waiting than this share of the time is none.
const WAITS: f64 = 0.02;
/// Workers that are idle for more than the rest of this share make batches unevenly.
const AT_WORK: f64 = 0.8;
/// One worker less is tried where the others would be at work for less than this share.
const SPARE: f64 = 0.7;
/// What more of something has to bring, and what less may cost.
const FASTER: f64 = 0.98;
const NOT_SLOWER: f64 = 1.02;
/// Windows without a try after one that was not kept, at first and at most.
const REST: (u32, u32) = (2, 64);

/// How a loader works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) workers: usize,
    pub(super) ahead: usize,
}

/// What may be changed, and how far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The most workers, where their number may change.
    pub(super) workers: Option<usize>,
    /// Whether the number of batches ahead may change.
    pub(super) ahead: bool,
    /// Bytes that batches in flight may have.
    pub(super) memory: u64,
}

/// Tries one way after the other.
#[derive(Debug)]
pub(super) struct Tuner {
    bounds: Bounds,
    now: Way,
    /// Where it was before the change that is being tried, how long a batch took there, and the
    /// share of that which it may take now.
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

    /// How to go on after a window.
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

    /// What to try, and what it has to bring.
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

    /// Whether memory has room for what is in flight: with each worker, ahead, one that is ready
    /// to be handed over and the one that was taken.
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

    /// A step of 10 ms, and loading that takes a worker so long.
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

    /// Where it has come to after so many windows.
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
        // A second worker is no help.
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
        // Twice as long after each: 1 window with two workers, then 2, 4 and 8 without.
        let twos: Vec<usize> = (0..ways.len()).filter(|&n| ways[n].workers == 2).collect();
        assert_eq!(twos, [1, 5, 11], "{ways:?}");
    }

    #[test]
    fn uneven_batches_are_made_ahead_within_memory() {
        let uneven = |way: Way| {
            let mut window = window(way, 5.0, 100);
            // The farther ahead, the less is waited.
            window.waited_ms = 8.0 / way.ahead as f64;
            window.period_ms = 10.0 + window.waited_ms;
            window
        };
        // One with the worker, one ready, one taken: seven are left of a thousand bytes.
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
