//! Observations of the consumer about the loader and its own steps.

use std::collections::VecDeque;
use std::time::Duration;

use super::pace::Pace;
use crate::diagnosis::clock::{Ticks, process_cpu, wall};
use crate::diagnosis::ledger::Entry;
use crate::diagnosis::phase::Phase;
use crate::diagnosis::{InputMeasures, PhaseTime};

/// Number of recent steps remembered, and of recent steps without workers.
const REMEMBERED: usize = 32;
/// The workers pause first after this batch, then each time twice as far on.
const FIRST_PAUSE: u64 = 4;
/// A pause ends by itself after this many times the duration of recent steps.
const PATIENCE: u32 = 4;
/// Minimum duration of that limit.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// A step counts as one without workers if they paused for this share of it.
const QUIET: f64 = 0.3;

/// Work done by the loader's threads up to a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) workers: Entry,
    /// Work of the batching thread.
    pub(super) batching: Entry,
}

/// All counters at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moment {
    wall: u64,
    process: u64,
    done: Done,
    /// Number of batches taken, and counters updated meanwhile.
    pub(super) taken: u64,
    waited: u64,
    ready: u64,
}

/// Constants of a loader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Items per batch.
    pub(super) size: usize,
    /// Items per epoch, if epochs repeat.
    pub(super) again: Option<usize>,
    pub(super) cores: usize,
    /// Bytes of free memory at the start.
    pub(super) free: Option<u64>,
}

/// Observations, batch by batch.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Moment of the first batch.
    first: Option<Moment>,
    counts: Moment,
    /// Time when the last batch was given.
    gave: Option<u64>,
    /// Durations of recent steps in nanoseconds.
    steps: VecDeque<u64>,
    /// Durations of recent steps without workers.
    alone: VecDeque<u64>,
    /// The batch after which the workers pause next.
    next_pause: u64,
    pausing: bool,
}

impl Seen {
    /// Records that the next batch is requested, while so many are ready.
    pub(super) fn asked(&mut self, pace: &Pace, ready: usize) {
        let now = wall();
        let Some(gave) = self.gave.take() else {
            return;
        };
        let step = now.saturating_sub(gave);
        if std::mem::take(&mut self.pausing) {
            let quiet = pace.resume();
            let usual = self.usual_step();
            let alone = quiet.and_then(|since| alone(usual, step, since.saturating_sub(gave)));
            remember(&mut self.alone, alone);
        } else {
            remember(&mut self.steps, Some(step));
        }
        self.counts.ready += ready as u64;
    }

    /// Records that a batch is given after this waiting time.
    pub(super) fn gives(&mut self, pace: &Pace, waited: Duration, done: impl Fn() -> Done) {
        let now = wall();
        self.gave = Some(now);
        if self.first.is_none() {
            self.first = Some(self.moment(&done()));
            self.next_pause = FIRST_PAUSE;
            return;
        }
        self.counts.taken += 1;
        self.counts.waited += waited.as_nanos() as u64;
        self.counts.wall = now;
        if self.counts.taken == self.next_pause {
            self.next_pause *= 2;
            self.pausing = true;
            let step = Duration::from_nanos(self.usual_step());
            pace.pause((step * PATIENCE).max(LEAST_PATIENCE));
        }
    }

    fn usual_step(&self) -> u64 {
        median(&self.steps).unwrap_or(0)
    }

    /// Returns all counters.
    pub(super) fn moment(&self, done: &Done) -> Moment {
        Moment {
            wall: wall(),
            process: process_cpu(),
            done: *done,
            ..self.counts
        }
    }

    /// Returns the number of batches taken since a moment.
    pub(super) fn since(&self, from: &Moment) -> u64 {
        self.counts.taken.saturating_sub(from.taken)
    }

    /// Returns the moment of the first batch.
    pub(super) fn first(&self) -> Option<Moment> {
        self.first
    }

    /// Returns the milliseconds of a step without workers, and of one with them.
    fn steps(&self) -> Option<(f64, f64)> {
        let ms = |steps| median(steps).map(|step| step as f64 / 1e6);
        ms(&self.alone).zip(ms(&self.steps))
    }

    /// Returns the measures between two moments.
    pub(super) fn measures(&self, from: &Moment, to: &Moment, facts: &Facts) -> InputMeasures {
        let taken = to.taken.saturating_sub(from.taken);
        let count = taken.max(1) as f64;
        let elapsed = to.wall.saturating_sub(from.wall);
        let period_ms = elapsed as f64 / 1e6 / count;
        let waited = to.waited.saturating_sub(from.waited);
        let waited_ms = (waited as f64 / 1e6 / count).min(period_ms);
        let workers = to.done.workers.since(from.done.workers);
        let batching = to.done.batching.since(from.done.batching);
        let made = (workers.items as f64 / facts.size as f64).max(f64::MIN_POSITIVE);
        let each = |ticks: Ticks| PhaseTime {
            wall_ms: ticks.wall as f64 / 1e6 / made,
            cpu_ms: ticks.cpu as f64 / 1e6 / made,
        };
        let process = to.process.saturating_sub(from.process);
        let loader = workers.busy.cpu + batching.busy.cpu;
        let training = process.saturating_sub(loader);
        let phases = if workers.items == 0 {
            Default::default()
        } else {
            let by_workers = workers.by_phase();
            let by_batching = batching.by_phase();
            Phase::ALL.map(|own| each(by_workers[own as usize].plus(by_batching[own as usize])))
        };
        // All are 0 if the system does not report delays.
        let delayed = |own: Entry| {
            let told = to.done.workers.delayed > 0 && workers.items > 0;
            told.then(|| own.delayed as f64 / 1e6 / made)
        };
        // A ratio of steps, so that a few long ones on either side have no effect.
        let step_ms = period_ms - waited_ms;
        let faster = |alone: f64, step: f64| {
            if step > 0.0 {
                (alone / step).min(1.0)
            } else {
                1.0
            }
        };
        let steps = self.steps();
        let step_alone_ms = steps.map(|(alone, step)| step_ms * faster(alone, step));
        InputMeasures {
            batches: taken,
            period_ms,
            waited_ms,
            step_alone_ms,
            phases,
            delayed_ms: delayed(workers),
            copy_delayed_ms: delayed(batching),
            training_cpu_ms: training as f64 / 1e6 / count,
            cores: facts.cores,
            ready: to.ready.saturating_sub(from.ready) as f64 / count,
            queued: workers.queued as f64 / workers.tasks.max(1) as f64,
            ..InputMeasures::default()
        }
    }
}

/// Estimates the duration of a step without workers, from one that took `step` with workers until
/// `after`; until then it progressed as slowly as a `usual` one.
fn alone(usual: u64, step: u64, after: u64) -> Option<u64> {
    let quiet = step.checked_sub(after)? as f64;
    if quiet < QUIET * step as f64 || usual == 0 {
        return None;
    }
    let before = usual.checked_sub(after).filter(|left| *left > 0);
    // Remainder of the step, with and without workers.
    let speed = before.map_or(1.0, |left| (quiet / left as f64).min(1.0));
    Some((after as f64 * speed + quiet) as u64)
}

fn remember(steps: &mut VecDeque<u64>, step: Option<u64>) {
    let Some(step) = step else {
        return;
    };
    if steps.len() == REMEMBERED {
        steps.pop_front();
    }
    steps.push_back(step);
}

fn median(steps: &VecDeque<u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = steps.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_in_which_workers_pause_tells_what_it_takes_without_them() {
        // Paused all the time.
        assert_eq!(alone(60, 26, 0), Some(26));
        // Half speed for 20 of a usual 52, then alone.
        assert_eq!(alone(52, 36, 20), Some(26));
        // Workers that do not slow the step down.
        assert_eq!(alone(30, 30, 10), Some(30));
        assert_eq!(alone(60, 50, 40), None, "too little of it was quiet");
        assert_eq!(alone(0, 10, 0), None, "nothing to compare it with");
    }
}
