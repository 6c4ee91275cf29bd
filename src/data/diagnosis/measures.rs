//! What is known of a loader and of who takes its batches: numbers, and nothing else.

use serde::{Deserialize, Serialize};

use super::phase::Phase;

/// What a phase takes of one batch, on whichever threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Milliseconds that pass on the threads that do it.
    pub wall_ms: f64,
    /// Milliseconds that these are on cores: what is left of `wall_ms` they wait, for a disk, a
    /// network, a lock or a core.
    pub cpu_ms: f64,
}

/// Where the time of loading and training goes: means over batches, each taken once. It is
/// all that a [verdict](super::Diagnosis::of) is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct InputMeasures {
    /// Batches that it was measured over.
    pub batches: u64,
    /// Milliseconds from taking a batch to taking the next.
    pub period_ms: f64,
    /// Milliseconds of them in which the batch was waited for.
    pub waited_ms: f64,
    /// Milliseconds that a step takes while no worker is at work; none where no such step was
    /// seen.
    pub step_alone_ms: Option<f64>,
    /// What a batch takes in each phase, in the order of [`Phase::ALL`].
    pub phases: [PhaseTime; Phase::ALL.len()],
    /// Milliseconds of a batch in which its workers were ready and had no core; none where the
    /// system does not tell.
    pub delayed_ms: Option<f64>,
    /// The same of the thread that copies.
    pub copy_delayed_ms: Option<f64>,
    /// Milliseconds on cores, for a batch, of all threads of this process but the loader's.
    pub training_cpu_ms: f64,
    /// Intra-op threads of the training, of each stage where it has several.
    pub intra_op: usize,
    /// Returns the number of cores that this process may use.
    pub cores: usize,
    /// Threads that load.
    pub workers: usize,
    /// Batches that are made ahead at most.
    pub prefetch: usize,
    /// Batches that were ready when one was asked for.
    pub ready: f64,
    /// Batches (or parts of them) that waited for a worker when one was taken.
    pub queued: f64,
    /// Bytes of a batch, where that is known.
    pub batch_bytes: Option<u64>,
    /// Bytes of all batches of an epoch, where it ends and comes again: what a cache would hold.
    pub epoch_bytes: Option<u64>,
    /// Bytes of memory that programs can still get, where the system tells.
    pub free_bytes: Option<u64>,
}

impl Default for InputMeasures {
    /// One core, one worker, and nothing to do.
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
    /// What a phase takes of a batch.
    pub fn of(&self, phase: Phase) -> PhaseTime {
        self.phases[phase as usize]
    }

    /// Milliseconds of a step: from having a batch to asking for the next.
    pub fn step_ms(&self) -> f64 {
        (self.period_ms - self.waited_ms).max(0.0)
    }

    /// What is to be expected where the loader that was measured alone feeds a training of which a
    /// step takes `step_ms`, and `training_cpu_ms` on cores: the slower of both, or what the cores
    /// allow.
    #[must_use]
    pub fn beside(&self, step_ms: f64, training_cpu_ms: f64) -> Self {
        let workers = self.worker_wall_ms() / self.workers.max(1) as f64;
        let loader = workers.max(self.of(Phase::Copy).wall_ms);
        let cores = (self.loader_cpu_ms() + training_cpu_ms) / self.cores.max(1) as f64;
        let period_ms = loader.max(step_ms).max(cores);
        // Whoever is slower than alone is slower for the cores that the other has.
        let waited_ms = (loader - step_ms.max(cores)).max(0.0);
        Self {
            period_ms,
            waited_ms,
            step_alone_ms: Some(step_ms),
            training_cpu_ms,
            ..self.clone()
        }
    }

    /// The share of the time in which a batch was waited for, 0 to 1.
    pub fn wait_share(&self) -> f64 {
        share(self.waited_ms, self.period_ms)
    }

    /// Milliseconds that the workers are on cores for a batch: of all phases but the copy.
    pub fn worker_cpu_ms(&self) -> f64 {
        self.by_workers().map(|time| time.cpu_ms).sum()
    }

    /// Milliseconds of worker threads that a batch takes.
    pub fn worker_wall_ms(&self) -> f64 {
        self.by_workers().map(|time| time.wall_ms).sum()
    }

    /// Milliseconds that the loader's threads are on cores for a batch.
    pub fn loader_cpu_ms(&self) -> f64 {
        self.worker_cpu_ms() + self.of(Phase::Copy).cpu_ms
    }

    /// Workers that are at work, on average.
    pub fn busy_workers(&self) -> f64 {
        share(self.worker_wall_ms(), self.period_ms)
    }

    /// Cores that the loader's threads take, on average.
    pub fn loader_cores(&self) -> f64 {
        share(self.loader_cpu_ms(), self.period_ms)
    }

    /// Cores that the rest of the process takes, on average: the training.
    pub fn training_cores(&self) -> f64 {
        share(self.training_cpu_ms, self.period_ms)
    }

    /// Milliseconds by which a step is longer than without the loader, as far as it is known.
    pub fn contended_ms(&self) -> f64 {
        (self.step_ms() - self.alone_ms()).max(0.0)
    }

    /// Milliseconds that a step would take if the loader took no core. Where no such step was
    /// seen, cores that are all taken are shared by how much each has to do.
    pub(super) fn alone_ms(&self) -> f64 {
        let step = self.step_ms();
        if let Some(alone) = self.step_alone_ms.filter(|_| step >= TELLING_MS) {
            // A pause may have come when other programs had less to do.
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

    /// Milliseconds that a phase waits for something that is no core.
    pub(super) fn idle_ms(&self, phase: Phase) -> f64 {
        let idle = |time: &PhaseTime| (time.wall_ms - time.cpu_ms).max(0.0);
        let own = idle(&self.of(phase));
        let taken = self.loader_cores() + self.training_cores();
        let delayed = |known: Option<f64>, all: f64| match known {
            Some(delayed) => delayed,
            // Whoever waits where all cores are taken waits for one.
            None if taken >= FULL * self.cores as f64 => all,
            None => 0.0,
        };
        if phase == Phase::Copy {
            return (own - delayed(self.copy_delayed_ms, own)).max(0.0);
        }
        let all: f64 = self.by_workers().map(|time| idle(&time)).sum();
        let delayed = delayed(self.delayed_ms, all);
        // Who works most waits most for cores.
        let cpu = share(self.of(phase).cpu_ms, self.worker_cpu_ms());
        (own - delayed * cpu).max(0.0)
    }

    fn by_workers(&self) -> impl Iterator<Item = PhaseTime> {
        let workers = Phase::ALL.into_iter().filter(|own| *own != Phase::Copy);
        workers.map(|phase| self.of(phase))
    }
}

/// Steps that are shorter than some turns of the system's scheduler, of a few milliseconds each, are
/// longer or shorter by whose turn it was: one without the loader tells nothing of it then.
const TELLING_MS: f64 = 10.0;
/// A millisecond of the loader's work makes a step longer by no more than so many: threads that wait for
/// each other lose more than what was taken from one of them, but not more than that.
const SLOWS: f64 = 2.0;
/// Cores are all taken from this share of them on.
pub(super) const FULL: f64 = 0.9;

/// `part` of `all`, 0 of nothing.
pub(super) fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}
