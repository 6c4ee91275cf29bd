//! Measurements of a loader and its consumer.

use serde::{Deserialize, Serialize};

use super::phase::Phase;

/// Time of one batch in a phase, on any threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Wall-clock milliseconds of the threads that do the work.
    pub wall_ms: f64,
    /// CPU milliseconds of these threads; the rest of `wall_ms` they wait for a disk, a network, a lock
    /// or a core.
    pub cpu_ms: f64,
}

/// Mean times of loading and training, per batch: the only input of a
/// [diagnosis](super::Diagnosis::of).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct InputMeasures {
    /// Number of measured batches.
    pub batches: u64,
    /// Milliseconds between taking two batches.
    pub period_ms: f64,
    /// Milliseconds of waiting for a batch.
    pub waited_ms: f64,
    /// Milliseconds of a step while no worker is busy; `None` if no such step was observed.
    pub step_alone_ms: Option<f64>,
    /// Time of each phase, in the order of [`Phase::ALL`].
    pub phases: [PhaseTime; Phase::ALL.len()],
    /// Milliseconds in which a batch's workers were runnable without a core; `None` if the system does
    /// not report it.
    pub delayed_ms: Option<f64>,
    /// Like `delayed_ms`, for the thread that copies.
    pub copy_delayed_ms: Option<f64>,
    /// CPU milliseconds per batch of all threads of this process except the loader's.
    pub training_cpu_ms: f64,
    /// Intra-op threads of training, per stage if there are several.
    pub intra_op: usize,
    /// Number of cores available to this process.
    pub cores: usize,
    /// Number of workers.
    pub workers: usize,
    /// Maximum number of prefetched batches.
    pub prefetch: usize,
    /// Number of ready batches when one was requested.
    pub ready: f64,
    /// Number of batches (or parts of them) queued when a worker took one.
    pub queued: f64,
    /// Bytes of a batch, if known.
    pub batch_bytes: Option<u64>,
    /// Bytes of all batches of a repeated epoch: the size of a cache.
    pub epoch_bytes: Option<u64>,
    /// Bytes of available memory, if the system reports it.
    pub free_bytes: Option<u64>,
}

impl Default for InputMeasures {
    /// One core, one worker, and no work.
    fn default() -> Self {
        Self {
            batches: 0,
            period_ms: 0.0,
            waited_ms: 0.0,
            step_alone_ms: None,
            phases: Default::default(),
            delayed_ms: None,
            copy_delayed_ms: None,
            training_cpu_ms: 0.0,
            intra_op: 1,
            cores: 1,
            workers: 1,
            prefetch: 2,
            ready: 0.0,
            queued: 0.0,
            batch_bytes: None,
            epoch_bytes: None,
            free_bytes: None,
        }
    }
}

impl InputMeasures {
    /// Returns the time of a phase.
    pub fn of(&self, phase: Phase) -> PhaseTime {
        self.phases[phase as usize]
    }

    /// Returns the milliseconds of a step: from receiving a batch to requesting the next.
    pub fn step_ms(&self) -> f64 {
        (self.period_ms - self.waited_ms).max(0.0)
    }

    /// Predicts the measures if this loader, measured alone, feeds a training with steps of `step_ms`,
    /// of which `training_cpu_ms` are on cores. The period is that of the slower one, or what the cores
    /// allow.
    #[must_use]
    pub fn beside(&self, step_ms: f64, training_cpu_ms: f64) -> Self {
        let workers = self.worker_wall_ms() / self.workers.max(1) as f64;
        let loader = workers.max(self.of(Phase::Copy).wall_ms);
        let cores = (self.loader_cpu_ms() + training_cpu_ms) / self.cores.max(1) as f64;
        let period_ms = loader.max(step_ms).max(cores);
        // A period beyond both is due to shared cores.
        let waited_ms = (loader - step_ms.max(cores)).max(0.0);
        Self {
            period_ms,
            waited_ms,
            step_alone_ms: Some(step_ms),
            training_cpu_ms,
            ..self.clone()
        }
    }

    /// Returns the share of the time spent waiting for batches, 0 to 1.
    pub fn wait_share(&self) -> f64 {
        share(self.waited_ms, self.period_ms)
    }

    /// Returns the workers' CPU milliseconds per batch: all phases except the copy.
    pub fn worker_cpu_ms(&self) -> f64 {
        self.by_workers().map(|time| time.cpu_ms).sum()
    }

    /// Returns the workers' wall-clock milliseconds per batch.
    pub fn worker_wall_ms(&self) -> f64 {
        self.by_workers().map(|time| time.wall_ms).sum()
    }

    /// Returns the loader's CPU milliseconds per batch.
    pub fn loader_cpu_ms(&self) -> f64 {
        self.worker_cpu_ms() + self.of(Phase::Copy).cpu_ms
    }

    /// Returns the average number of busy workers.
    pub fn busy_workers(&self) -> f64 {
        share(self.worker_wall_ms(), self.period_ms)
    }

    /// Returns the average number of cores that the loader uses.
    pub fn loader_cores(&self) -> f64 {
        share(self.loader_cpu_ms(), self.period_ms)
    }

    /// Returns the average number of cores that the rest of the process uses.
    pub fn training_cores(&self) -> f64 {
        share(self.training_cpu_ms, self.period_ms)
    }

    /// Returns the milliseconds by which contention lengthens a step, as far as known.
    pub fn contended_ms(&self) -> f64 {
        (self.step_ms() - self.alone_ms()).max(0.0)
    }

    /// Returns the milliseconds of a step without the loader. If no such step was observed, fully used
    /// cores are split in proportion to the work.
    pub(super) fn alone_ms(&self) -> f64 {
        let step = self.step_ms();
        if let Some(alone) = self.step_alone_ms.filter(|_| step >= TELLING_MS) {
            // Other programs may have been less busy during a pause.
            let beside = self.loader_cpu_ms() * (1.0 - self.wait_share());
            return alone.max(step - SLOWS * beside).min(step);
        }
        let taken = self.loader_cores() + self.training_cores();
        if taken < FULL * self.cores as f64 {
            return step;
        }
        let least = self.training_cpu_ms / self.cores as f64;
        (step * share(self.training_cores(), taken)).max(least.min(step))
    }

    /// Returns the milliseconds in which a phase waits for something other than a core.
    pub(super) fn idle_ms(&self, phase: Phase) -> f64 {
        let idle = |time: &PhaseTime| (time.wall_ms - time.cpu_ms).max(0.0);
        let own = idle(&self.of(phase));
        let taken = self.loader_cores() + self.training_cores();
        let delayed = |known: Option<f64>, all: f64| match known {
            Some(delayed) => delayed,
            // With all cores in use, waiting threads wait for a core.
            None if taken >= FULL * self.cores as f64 => all,
            None => 0.0,
        };
        if phase == Phase::Copy {
            return (own - delayed(self.copy_delayed_ms, own)).max(0.0);
        }
        let all: f64 = self.by_workers().map(|time| idle(&time)).sum();
        let delayed = delayed(self.delayed_ms, all);
        // Waiting for cores is proportional to work.
        let cpu = share(self.of(phase).cpu_ms, self.worker_cpu_ms());
        (own - delayed * cpu).max(0.0)
    }

    fn by_workers(&self) -> impl Iterator<Item = PhaseTime> {
        let workers = Phase::ALL.into_iter().filter(|own| *own != Phase::Copy);
        workers.map(|phase| self.of(phase))
    }
}

/// Shorter steps depend on scheduling: with time slices of a few milliseconds, a step without the
/// loader tells nothing.
const TELLING_MS: f64 = 10.0;
/// Upper bound of the slowdown per millisecond of the loader's work: threads that wait for each other
/// lose more than what was taken from one of them.
const SLOWS: f64 = 2.0;
/// Share from which all cores count as used.
pub(super) const FULL: f64 = 0.9;

/// Returns `part / all`, or 0 if `all` is 0.
pub(super) fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}
