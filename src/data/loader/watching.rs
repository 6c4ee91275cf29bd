//! What whoever takes the batches sees of the loader, and so the loader of the training.

use std::collections::VecDeque;
use std::time::Duration;

use super::pace::Pace;
use crate::diagnosis::clock::{Ticks, process_cpu, wall};
use crate::diagnosis::ledger::Entry;
use crate::diagnosis::phase::Phase;
use crate::diagnosis::{InputMeasures, PhaseTime};

/// Steps that are remembered, and steps without workers.
const REMEMBERED: usize = 32;
/// The first batch after which the workers pause, and the next is twice as far on.
const FIRST_PAUSE: u64 = 4;
/// A pause ends by itself after so many steps as long as the last ones.
const PATIENCE: u32 = 4;
/// And not before that.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// A step counts as one without workers where these paused for so much of it.
const QUIET: f64 = 0.3;

/// What the loader's threads have done up to a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) workers: Entry,
    /// What the batching thread has done.
    pub(super) batching: Entry,
}

/// All counts at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moment {
    wall: u64,
    process: u64,
    done: Done,
    /// Batches that were taken, and what was seen meanwhile.
    pub(super) taken: u64,
    waited: u64,
    ready: u64,
}

/// What does not change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Items of a batch.
    pub(super) size: usize,
    /// Items of an epoch, where it comes again.
    pub(super) again: Option<usize>,
    pub(super) cores: usize,
    /// Bytes of memory that were free when it began.
    pub(super) free: Option<u64>,
}

/// What was seen, batch by batch.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// When the first batch came.
    first: Option<Moment>,
    counts: Moment,
    /// When the last one was given.
    gave: Option<u64>,
    /// Nanoseconds of the last steps.
    steps: VecDeque<u64>,
    /// The same of steps without workers.
    alone: VecDeque<u64>,
    /// After which batch the workers pause next.
    next_pause: u64,
    pausing: bool,
}

impl Seen {
    /// The next batch is asked for, while so many are ready.
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

    /// A batch was waited for so long and is given now.
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

    /// All counts now.
    pub(super) fn moment(&self, done: &Done) -> Moment {
        Moment {
            wall: wall(),
            process: process_cpu(),
            done: *done,
            ..self.counts
        }
    }

    /// Batches that were taken since.
    pub(super) fn since(&self, from: &Moment) -> u64 {
        self.counts.taken.saturating_sub(from.taken)
    }

    /// When the first batch came.
    pub(super) fn first(&self) -> Option<Moment> {
        self.first
    }

    /// Milliseconds of a step without workers, and of one with them.
    fn steps(&self) -> Option<(f64, f64)> {
        let ms = |steps| median(steps).map(|step| step as f64 / 1e6);
        ms(&self.alone).zip(ms(&self.steps))
    }

    /// What happened from one moment to another.
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
        // Where the system tells nothing, all are 0.
        let delayed = |own: Entry| {
            let told = to.done.workers.delayed > 0 && workers.items > 0;
            told.then(|| own.delayed as f64 / 1e6 / made)
        };
        // A ratio of steps, so that a few long ones on either side change nothing.
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

/// What a step takes without workers, where these paused `after` so long of one that took `step`:
/// before that it was as slow as a `usual` one.
fn alone(usual: u64, step: u64, after: u64) -> Option<u64> {
    let quiet = step.checked_sub(after)? as f64;
    if quiet < QUIET * step as f64 || usual == 0 {
        return None;
    }
    let before = usual.checked_sub(after).filter(|left| *left > 0);
    // The rest of the step, with and without workers.
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
        // Half as fast for 20 of what would be 52, then alone.
        assert_eq!(alone(52, 36, 20), Some(26));
        // Workers that do not slow it down.
        assert_eq!(alone(30, 30, 10), Some(30));
        assert_eq!(alone(60, 50, 40), None, "too little of it was quiet");
        assert_eq!(alone(0, 10, 0), None, "nothing to compare it with");
    }
}
