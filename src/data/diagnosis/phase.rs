//! Phases of loading, and their measurement.
//!
//! A sampled thread has a stopwatch that runs for one phase at a time: entering a phase stops the
//! enclosing phase, and leaving resumes it. Each switch reads two clocks, which takes longer than
//! making a small item. So a worker samples only few items ([`Sampling`]); for all others,
//! [`Phase::during`] only reads a flag.

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::clock::Ticks;

/// A phase of loading a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Reading items from their storage, by a [`Source`](super::super::Source). A batch that a source
    /// gathers in one pass counts as read, not stacked.
    Read,
    /// Decoding bytes to items: images, `tf.train.Example`s, and
    /// [`Dataset::decode`](super::super::Dataset::decode).
    Decode,
    /// Functions applied to items and batches.
    Map,
    /// Stacking items to a batch.
    Stack,
    /// Copying batches to a device, on a thread shared by all workers. For CUDA, only the host's work
    /// counts; the copy itself is asynchronous.
    Copy,
}

impl Phase {
    /// All phases, in the order that a batch passes through them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Decode, Self::Map, Self::Stack, Self::Copy];

    /// Returns the name in lowercase.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Map => "map",
            Self::Stack => "stack",
            Self::Copy => "copy",
        }
    }

    /// Runs `work` on a loader's thread as part of this phase: for example, decoding in a custom
    /// [`Source::get`](super::super::Source::get), which would otherwise count as reading. It costs
    /// about a nanosecond, and reads clocks only for sampled items.
    ///
    /// ```
    /// use gpipe::data::Phase;
    ///
    /// let numbers = Phase::Decode.during(|| "1 2 3".split(' ').count());
    /// assert_eq!(numbers, 3);
    /// ```
    #[inline]
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        if !STOPWATCH.with(|own| own.runs.get()) {
            return work();
        }
        let _back = Back(STOPWATCH.with(|own| own.enter(self)));
        work()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Time by phase.
pub(crate) type ByPhase = [Ticks; Phase::ALL.len()];

struct Stopwatch {
    runs: Cell<bool>,
    phase: Cell<Phase>,
    since: Cell<Ticks>,
    taken: Cell<ByPhase>,
    /// Number of clock readings.
    readings: Cell<u64>,
    /// Cost of a reading, which is subtracted.
    cost: Cell<Option<Ticks>>,
}

const NONE: Ticks = Ticks { wall: 0, cpu: 0 };

thread_local! {
    static STOPWATCH: Stopwatch = const {
        Stopwatch {
            runs: Cell::new(false),
            phase: Cell::new(Phase::Read),
            since: Cell::new(NONE),
            taken: Cell::new([NONE; Phase::ALL.len()]),
            readings: Cell::new(0),
            cost: Cell::new(None),
        }
    };
}

impl Stopwatch {
    /// Stops the running phase, starts the next, and returns the stopped one.
    fn enter(&self, next: Phase) -> Phase {
        let now = Ticks::now();
        let before = self.phase.replace(next);
        let took = now.since(self.since.get()).since(self.cost());
        let mut taken = self.taken.get();
        taken[before as usize] = taken[before as usize].plus(took);
        self.taken.set(taken);
        self.readings.set(self.readings.get() + 1);
        self.since.set(now);
        before
    }

    /// Returns the minimum cost of reading the clocks, measured once per thread.
    fn cost(&self) -> Ticks {
        if let Some(cost) = self.cost.get() {
            return cost;
        }
        let least = |least: Ticks, _| {
            let begin = Ticks::now();
            let took = Ticks::now().since(begin);
            Ticks {
                wall: least.wall.min(took.wall),
                cpu: least.cpu.min(took.cpu),
            }
        };
        let most = Ticks {
            wall: 10_000,
            cpu: 10_000,
        };
        let cost = (0..16).fold(most, least);
        self.cost.set(Some(cost));
        cost
    }
}

/// Resumes the enclosing phase when dropped.
struct Back(Phase);

impl Drop for Back {
    fn drop(&mut self) {
        STOPWATCH.with(|own| own.enter(self.0));
    }
}

/// Excludes a pause of the calling thread from all phases.
pub(crate) fn skip(nanoseconds: u64) {
    STOPWATCH.with(|own| {
        let since = own.since.get();
        let wall = since.wall + nanoseconds;
        own.since.set(Ticks { wall, ..since });
    });
}

/// The running stopwatch of the calling thread; there is one at a time.
pub(crate) struct Sampling(());

/// Results of sampling.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sampled {
    pub(crate) taken: ByPhase,
    /// Nanoseconds spent reading the clocks.
    pub(crate) cost: u64,
}

impl Sampling {
    /// Starts in a phase.
    pub(crate) fn begin(phase: Phase) -> Self {
        STOPWATCH.with(|own| {
            own.cost();
            own.taken.set([NONE; Phase::ALL.len()]);
            own.readings.set(0);
            own.phase.set(phase);
            own.runs.set(true);
            own.since.set(Ticks::now());
        });
        Self(())
    }

    /// Stops, and returns the time of each phase.
    pub(crate) fn end(self) -> Sampled {
        let found = STOPWATCH.with(|own| {
            own.enter(own.phase.get());
            Sampled {
                taken: own.taken.get(),
                cost: own.readings.get() * own.cost().wall,
            }
        });
        drop(self);
        found
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        STOPWATCH.with(|own| own.runs.set(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(nanoseconds: u64) {
        let begin = Ticks::now();
        while Ticks::now().since(begin).cpu < nanoseconds {}
    }

    #[test]
    fn a_phase_inside_of_another_is_not_counted_twice() {
        const UNIT: u64 = 2_000_000;
        let sampling = Sampling::begin(Phase::Read);
        work(UNIT);
        Phase::Map.during(|| {
            work(2 * UNIT);
            Phase::Decode.during(|| work(UNIT));
        });
        let found = sampling.end().taken;
        let cpu = |phase: Phase| found[phase as usize].cpu;
        for (phase, units) in [(Phase::Read, 1), (Phase::Map, 2), (Phase::Decode, 1)] {
            let took = cpu(phase);
            // Each has at least the requested time, less the cost of reading the clocks.
            assert!(took > units * UNIT * 9 / 10, "{phase}: {took}");
            assert!(took < (units + 1) * UNIT, "{phase}: {took}");
        }
        assert_eq!((cpu(Phase::Stack), cpu(Phase::Copy)), (0, 0));
    }

    #[test]
    fn nothing_is_counted_where_nobody_looks() {
        Phase::Map.during(|| work(1000));
        let sampling = Sampling::begin(Phase::Stack);
        let found = sampling.end();
        assert_eq!(found.taken[Phase::Map as usize], Ticks::default());
        // A panic also leaves its phase.
        let sampling = Sampling::begin(Phase::Read);
        let panics = std::panic::catch_unwind(|| Phase::Map.during(|| panic!("on purpose")));
        assert!(panics.is_err());
        work(1_000_000);
        let found = sampling.end().taken;
        assert!(found[Phase::Read as usize].cpu > 900_000, "{found:?}");
    }
}
