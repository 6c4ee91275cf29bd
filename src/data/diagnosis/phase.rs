//! What loading is made of, and whose time it is.
//!
//! A thread that is being looked at has a stopwatch, which runs for one phase at a time: entering
//! another phase ends the time of the one around it, and leaving goes back to that. Two clocks are
//! read for each, which takes longer than making a small item does. So a worker looks at few items
//! only ([`Sampling`]), and at all others [`Phase::during`] reads a flag and nothing else.

use std::cell::Cell;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::clock::Ticks;

/// A part of loading a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Getting items from where they are: what a [`Source`](super::super::Source) does. A batch
    /// that a source gathers in one pass is read, and not stacked.
    Read,
    /// Making items of bytes: of images, of `tf.train.Example`s, and what
    /// [`Dataset::decode`](super::super::Dataset::decode) does.
    Decode,
    /// Functions of items and of batches.
    Map,
    /// Making a batch of items.
    Stack,
    /// Bringing batches to a device, on a thread that all workers share. On CUDA it is what the
    /// host does for that; the copy itself goes on beside it.
    Copy,
}

impl Phase {
    /// All of them, in the order in which a batch goes through them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Decode, Self::Map, Self::Stack, Self::Copy];

    /// What it is called, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Map => "map",
            Self::Stack => "stack",
            Self::Copy => "copy",
        }
    }

    /// Does some work on a thread of a loader as a part of this phase: decoding in the
    /// [`Source::get`](super::super::Source::get) of one's own source, say, which would count as
    /// reading otherwise. It costs about a nanosecond, and reads clocks for few items only.
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

/// What each phase took.
pub(crate) type ByPhase = [Ticks; Phase::ALL.len()];

struct Stopwatch {
    runs: Cell<bool>,
    phase: Cell<Phase>,
    since: Cell<Ticks>,
    taken: Cell<ByPhase>,
    /// Times that the clocks were read.
    readings: Cell<u64>,
    /// What reading them takes, which is nobody's work.
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
    /// Ends the time of the phase that it runs for, and gives that phase.
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

    /// What reading the clocks takes at least, found once on each thread.
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

/// Goes back to the phase around.
struct Back(Phase);

impl Drop for Back {
    fn drop(&mut self) {
        STOPWATCH.with(|own| own.enter(self.0));
    }
}

/// Time that passed on the calling thread is no phase's: it paused.
pub(crate) fn skip(nanoseconds: u64) {
    STOPWATCH.with(|own| {
        let since = own.since.get();
        let wall = since.wall + nanoseconds;
        own.since.set(Ticks { wall, ..since });
    });
}

/// Runs the stopwatch of the calling thread; there is one at a time.
pub(crate) struct Sampling(());

/// What was found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sampled {
    pub(crate) taken: ByPhase,
    /// Nanoseconds that reading the clocks took.
    pub(crate) cost: u64,
}

impl Sampling {
    /// Begins in a phase.
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

    /// What each phase has taken since.
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
            // Each has at least what was asked for, less what reading the clocks takes.
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
        // A panic leaves its phase too.
        let sampling = Sampling::begin(Phase::Read);
        let panics = std::panic::catch_unwind(|| Phase::Map.during(|| panic!("on purpose")));
        assert!(panics.is_err());
        work(1_000_000);
        let found = sampling.end().taken;
        assert!(found[Phase::Read as usize].cpu > 900_000, "{found:?}");
    }
}
