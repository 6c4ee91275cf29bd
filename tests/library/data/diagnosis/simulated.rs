//! Simulates a loader and a training that share cores, in discrete time, to test the verdicts.
//!
//! It is independent of the verdicts' computation. Workers take turns at the phases of a batch, in which they
//! wait and then work; one thread copies; the training computes on several threads that wait for each other.
//! All that work share the cores.

use gpipe::data::{InputMeasures, Phase, PhaseTime};

/// Milliseconds per tick.
const TICK: f64 = 0.1;
/// Simulated batches.
const BATCHES: u64 = 200;

/// A machine, a loader and a training; all times are milliseconds per batch.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) cores: usize,
    pub(super) workers: usize,
    pub(super) prefetch: usize,
    /// CPU time by phase.
    pub(super) work: [f64; 5],
    /// Waits for a disk by phase.
    pub(super) idle: [f64; 5],
    /// Every `every`th batch takes `long` times as long.
    pub(super) every: u64,
    pub(super) long: f64,
    /// A step with all its cores to itself.
    pub(super) step: f64,
    /// Threads that compute a step.
    pub(super) threads: usize,
    /// Whether an epoch fits into memory and is repeated.
    pub(super) cacheable: bool,
}

impl Default for World {
    fn default() -> Self {
        Self {
            cores: 2,
            workers: 1,
            prefetch: 2,
            work: [0.0; 5],
            idle: [0.0; 5],
            every: 1,
            long: 1.0,
            step: 20.0,
            threads: 1,
            cacheable: false,
        }
    }
}

/// A worker or the copying thread.
#[derive(Debug, Clone, Default)]
struct Hand {
    /// Remaining phases: waiting, then working.
    left: Vec<(usize, f64, f64)>,
}

impl Hand {
    fn is_free(&self) -> bool {
        self.left.is_empty()
    }

    fn works(&self) -> bool {
        self.left.last().is_some_and(|(_, idle, _)| *idle <= 0.0)
    }

    /// Advances by a tick, with this share of a core if it works. Returns whether it is done.
    fn pass(&mut self, share: f64, taken: &mut Taken) -> bool {
        let Some((phase, idle, work)) = self.left.last_mut() else {
            return false;
        };
        taken.phases[*phase].wall_ms += TICK;
        if *idle > 0.0 {
            *idle -= TICK;
        } else {
            *work -= TICK * share;
            taken.phases[*phase].cpu_ms += TICK * share;
            let delayed = if *phase == Phase::Copy as usize {
                &mut taken.copy_delayed
            } else {
                &mut taken.delayed
            };
            *delayed += TICK * (1.0 - share);
        }
        if *idle <= 0.0 && *work <= 1e-9 {
            self.left.pop();
        }
        self.left.is_empty()
    }
}

#[derive(Debug, Default)]
struct Taken {
    phases: [PhaseTime; 5],
    delayed: f64,
    copy_delayed: f64,
    training: f64,
    waited: f64,
    ready: usize,
}

impl World {
    fn task(&self, number: u64, phases: std::ops::Range<usize>) -> Vec<(usize, f64, f64)> {
        let factor = if number % self.every == self.every - 1 {
            self.long
        } else {
            1.0
        };
        let there = |phase: &usize| self.work[*phase] + self.idle[*phase] > 0.0;
        let all = phases.filter(there);
        all.map(|phase| (phase, factor * self.idle[phase], factor * self.work[phase]))
            .rev()
            .collect()
    }

    /// The loader's measurements.
    pub(super) fn measures(&self) -> InputMeasures {
        let copy = Phase::Copy as usize;
        let mut hands = vec![Hand::default(); self.workers];
        let mut copier = Hand::default();
        let (mut begun, mut made, mut ready, mut given) = (0_u64, 0_usize, 0_usize, 0_u64);
        let (mut step, mut now) = (0.0_f64, 0.0);
        let mut taken = Taken::default();
        while given < BATCHES {
            for hand in hands.iter_mut().filter(|hand| hand.is_free()) {
                let out = begun - given - ready as u64;
                if out <= self.workers as u64 {
                    hand.left = self.task(begun, 0..copy);
                    begun += 1;
                    // It has nothing to do.
                    made += usize::from(hand.is_free());
                }
            }
            if copier.is_free() && made > 0 && ready < self.prefetch {
                made -= 1;
                copier.left = self.task(0, copy..5);
                ready += usize::from(copier.is_free());
            }
            if step <= 0.0 && ready > 0 {
                taken.ready += ready;
                ready -= 1;
                given += 1;
                step = self.step;
            }
            let at_work = hands.iter().chain([&copier]).filter(|hand| hand.works());
            let training = if step > 0.0 { self.threads } else { 0 };
            let threads = (at_work.count() + training).max(1);
            let share = (self.cores as f64 / threads as f64).min(1.0);
            for hand in &mut hands {
                made += usize::from(hand.pass(share, &mut taken));
            }
            ready += usize::from(copier.pass(share, &mut taken));
            if step > 0.0 {
                step -= TICK * share;
                taken.training += TICK * share * self.threads as f64;
            } else {
                taken.waited += TICK;
            }
            now += TICK;
        }
        self.told(&taken, now)
    }

    fn told(&self, taken: &Taken, now: f64) -> InputMeasures {
        let count = BATCHES as f64;
        let mut measures = InputMeasures::default();
        measures.batches = BATCHES;
        measures.period_ms = now / count;
        measures.waited_ms = taken.waited / count;
        let alone = self.threads as f64 / self.cores as f64;
        measures.step_alone_ms = Some(self.step * alone.max(1.0));
        measures.phases = taken.phases.map(|own| PhaseTime {
            wall_ms: own.wall_ms / count,
            cpu_ms: own.cpu_ms / count,
        });
        measures.delayed_ms = Some(taken.delayed / count);
        measures.copy_delayed_ms = Some(taken.copy_delayed / count);
        measures.training_cpu_ms = taken.training / count;
        measures.intra_op = self.threads;
        measures.cores = self.cores;
        measures.workers = self.workers;
        measures.prefetch = self.prefetch;
        measures.ready = taken.ready as f64 / count;
        measures.epoch_bytes = self.cacheable.then_some(1000);
        measures.free_bytes = Some(1_000_000);
        measures
    }
}
