//! Predicts the time of a batch after a change.
//!
//! ```text
//! period = max of  the workers    (their work + what they wait) / workers
//!                  the copy       one thread's
//!                  the step       alone + what it is slowed down by the loader's work
//!                  the cores      (loader's work + training's) / cores
//! ```
//!
//! The slowdown of the step by the loader's work is measured, and proportional to that work.

use super::measures::{InputMeasures, share};
use super::phase::Phase;

/// Times of a batch in milliseconds, which may be changed before calling [`Model::period`].
#[derive(Debug, Clone)]
pub(super) struct Model {
    /// CPU time by phase.
    pub(super) work: [f64; Phase::ALL.len()],
    /// Time waiting for anything but cores, by phase.
    pub(super) idle: [f64; Phase::ALL.len()],
    pub(super) workers: usize,
    /// Time of a step without the loader.
    pub(super) alone: f64,
    /// Slowdown of a step per millisecond of the loader's work.
    pub(super) slowed: f64,
    pub(super) training: f64,
    pub(super) cores: f64,
}

impl Model {
    pub(super) fn of(measures: &InputMeasures) -> Self {
        let work = Phase::ALL.map(|phase| measures.of(phase).cpu_ms);
        let idle = Phase::ALL.map(|phase| measures.idle_ms(phase));
        // Loading while the step waits does not slow the step down.
        let beside = measures.loader_cpu_ms() * (1.0 - measures.wait_share());
        Self {
            work,
            idle,
            workers: measures.workers.max(1),
            alone: measures.alone_ms(),
            slowed: share(measures.contended_ms(), beside),
            training: measures.training_cpu_ms,
            cores: measures.cores.max(1) as f64,
        }
    }

    /// Returns the workers' milliseconds per batch.
    pub(super) fn of_workers(&self) -> f64 {
        let copy = Phase::Copy as usize;
        let all = self.work[..copy].iter().chain(&self.idle[..copy]);
        all.sum::<f64>() / self.workers as f64
    }

    /// Returns the milliseconds of copying a batch.
    pub(super) fn of_copy(&self) -> f64 {
        let copy = Phase::Copy as usize;
        self.work[copy] + self.idle[copy]
    }

    fn of_cores(&self) -> f64 {
        (self.work.iter().sum::<f64>() + self.training) / self.cores
    }

    /// Returns the milliseconds per batch.
    pub(super) fn period(&self) -> f64 {
        let work: f64 = self.work.iter().sum();
        let step = self.alone + self.slowed * work;
        let loader = self.of_workers().max(self.of_copy());
        loader.max(step).max(self.of_cores())
    }

    /// Returns a copy with some phases scaled by a factor.
    pub(super) fn scaled(&self, phases: &[Phase], factor: f64) -> Self {
        let mut other = self.clone();
        for phase in phases {
            other.work[*phase as usize] *= factor;
            other.idle[*phase as usize] *= factor;
        }
        other
    }
}
