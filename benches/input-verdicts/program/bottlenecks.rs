//! The bottlenecks, made for a machine of two cores and more.

use gpipe::data::{Change, Limit, Phase};

/// Costs that make a batch slow; all times are milliseconds per batch.
#[derive(Debug, Clone)]
pub(crate) struct Bottleneck {
    pub(crate) name: &'static str,
    pub(crate) limit: Limit,
    /// CPU time by phase.
    pub(crate) work: [f64; 5],
    /// Sleep by phase, as with a slow disk or link.
    pub(crate) idle: [f64; 5],
    /// `(n, factor)`: every `n`th batch takes `factor` times as long.
    pub(crate) uneven: (usize, f64),
    /// Matrix products per step.
    pub(crate) products: usize,
    /// Threads that compute a step.
    pub(crate) threads: usize,
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    /// Whether epochs repeat, so that a cache helps.
    pub(crate) again: bool,
    pub(crate) cached: bool,
}

impl Bottleneck {
    fn new(name: &'static str, limit: Limit) -> Self {
        Self {
            name,
            limit,
            work: [0.0; 5],
            idle: [0.0; 5],
            uneven: (1, 1.0),
            products: 24,
            threads: 1,
            workers: 1,
            prefetch: 2,
            again: false,
            cached: false,
        }
    }

    fn work(mut self, phase: Phase, ms: f64) -> Self {
        self.work[phase as usize] = ms;
        self
    }

    fn idle(mut self, phase: Phase, ms: f64) -> Self {
        self.idle[phase as usize] = ms;
        self
    }

    fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    fn training(mut self, products: usize, threads: usize) -> Self {
        (self.products, self.threads) = (products, threads);
        self
    }

    fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// Returns a copy with `change` applied.
    pub(crate) fn changed(&self, change: Change) -> Self {
        let mut other = self.clone();
        match change {
            Change::Workers(workers) => other.workers = workers,
            Change::Prefetch(batches) => other.prefetch = batches,
            Change::Cache => other.cached = true,
            Change::IntraOp(threads) => other.threads = threads,
            Change::NarrowTypes => {
                for phase in [Phase::Stack, Phase::Copy] {
                    other.work[phase as usize] /= 4.0;
                    other.idle[phase as usize] /= 4.0;
                }
            }
            Change::Cheaper(phase) => other.work[phase as usize] /= 2.0,
            Change::Faster(phase) => other.idle[phase as usize] /= 2.0,
            _ => {}
        }
        other
    }
}

/// All bottlenecks.
pub(crate) fn all() -> Vec<Bottleneck> {
    use Limit::{Compute, Contended, Cpu, Io, Uneven};
    use Phase::{Copy, Decode, Map, Read, Stack};
    let new = Bottleneck::new;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // As many step threads as cores, with the same work for each.
    let heavy = |own: Bottleneck| own.training(48 * cores, cores).again();
    // Together these take less than the steps: six milliseconds each, against about ten per step.
    let mut uneven = new("batches that come unevenly", Uneven).idle(Read, 3.0);
    (uneven.uneven, uneven.prefetch) = ((16, 20.0), 1);
    uneven = uneven.training(36, 1);
    vec![
        new("slow disk, 1 worker", Io(Read)).idle(Read, 40.0),
        new("slow disk, 2 workers", Io(Read))
            .idle(Read, 80.0)
            .workers(2),
        new("slow network in map", Io(Map))
            .idle(Map, 40.0)
            .work(Map, 4.0),
        new("slow decoder", Cpu(Decode)).work(Decode, 40.0).again(),
        new("slow map", Cpu(Map)).work(Map, 40.0),
        new("slow map, 2 workers", Cpu(Map))
            .work(Map, 80.0)
            .workers(2)
            .again(),
        new("slow stacking", Cpu(Stack)).work(Stack, 40.0),
        new("slow copy", Cpu(Copy)).work(Copy, 40.0),
        new("slow link to the device", Io(Copy)).idle(Copy, 40.0),
        heavy(new("heavy training", Compute)).work(Map, 0.5),
        heavy(new("map and training share cores", Contended(Map))).work(Map, 40.0),
        heavy(new("the same, 2 workers", Contended(Map)))
            .work(Map, 40.0)
            .workers(2),
        new("disk first, decoder second", Io(Read))
            .idle(Read, 40.0)
            .work(Decode, 10.0),
        heavy(new("slow disk behind a heavy training", Compute))
            .idle(Read, 8.0)
            .workers(2),
        uneven,
    ]
}
