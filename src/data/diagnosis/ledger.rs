//! What the threads of a loader have done, written by each for itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::{Delays, Ticks};
use super::phase::{ByPhase, Phase, Sampled};

/// Sums that one thread adds to and others read.
#[derive(Debug, Default)]
struct Sums {
    wall: AtomicU64,
    cpu: AtomicU64,
}

impl Sums {
    /// The thread that writes is the only one: no addition is lost.
    fn add(&self, ticks: Ticks) {
        add(&self.wall, ticks.wall);
        add(&self.cpu, ticks.cpu);
    }

    fn get(&self) -> Ticks {
        Ticks {
            wall: self.wall.load(Ordering::Relaxed),
            cpu: self.cpu.load(Ordering::Relaxed),
        }
    }
}

fn add(sum: &AtomicU64, more: u64) {
    sum.store(sum.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

fn add_each(sums: &[Sums; Phase::ALL.len()], taken: &ByPhase) {
    for (sum, ticks) in sums.iter().zip(taken) {
        sum.add(*ticks);
    }
}

/// What one thread has done.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// All of it.
    busy: Sums,
    /// What of it was measured as it was, by phase...
    exact: [Sums; Phase::ALL.len()],
    /// ...and what of the rest was sampled.
    sampled: [Sums; Phase::ALL.len()],
    /// Nanoseconds that sampling took.
    cost: AtomicU64,
    /// Tasks that were done, and their items.
    tasks: AtomicU64,
    items: AtomicU64,
    /// Tasks that waited when it took one, all together.
    queued: AtomicU64,
    /// Nanoseconds in which it was ready and had no core.
    delayed: AtomicU64,
}

/// Sampling may take this share of the time: one part of so many.
const SHARE: u64 = 256;
/// The first tasks, which are sampled in any case, but for the very first: it meets caches that are
/// cold.
const FIRST: std::ops::Range<u64> = 1..4;

impl Ledger {
    /// Whether the next items are to be sampled.
    pub(crate) fn samples(&self) -> bool {
        let tasks = self.tasks.load(Ordering::Relaxed);
        let cost = self.cost.load(Ordering::Relaxed);
        FIRST.contains(&tasks) || cost < self.busy.get().wall / SHARE
    }

    /// Tasks that were done: what the place of the next sample depends on.
    pub(crate) fn tasks(&self) -> u64 {
        self.tasks.load(Ordering::Relaxed)
    }

    pub(crate) fn add_sampled(&self, found: &Sampled) {
        add_each(&self.sampled, &found.taken);
        add(&self.cost, found.cost);
    }

    pub(crate) fn add_exact(&self, taken: &ByPhase) {
        add_each(&self.exact, taken);
    }

    /// Work of which all is known by phase.
    pub(crate) fn add_whole(&self, taken: &ByPhase) {
        self.add_exact(taken);
        let all = taken
            .iter()
            .fold(Ticks::default(), |sum, own| sum.plus(*own));
        self.busy.add(all);
    }

    /// A task of so many items, which took so long, is done; so many others were waiting when it
    /// was taken.
    pub(crate) fn add_task(&self, took: Ticks, items: usize, queued: usize) {
        self.busy.add(took);
        add(&self.items, items as u64);
        add(&self.queued, queued as u64);
        add(&self.tasks, 1);
    }

    /// What there is up to now.
    pub(crate) fn entry(&self) -> Entry {
        let all = |sums: &[Sums; Phase::ALL.len()]| sums.each_ref().map(Sums::get);
        Entry {
            busy: self.busy.get(),
            exact: all(&self.exact),
            sampled: all(&self.sampled),
            tasks: self.tasks.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
        }
    }
}

/// Looks now and then how long its thread had no core: it is a call of the system.
#[derive(Debug, Default)]
pub(crate) struct DelayReader {
    delays: Delays,
    read: Cell<u64>,
}

/// Nanoseconds between two looks.
const LOOKS: u64 = 10_000_000;

impl DelayReader {
    pub(crate) fn new() -> Self {
        Self {
            delays: Delays::of_this_thread(),
            read: Cell::new(0),
        }
    }

    /// Writes it down where that was not done a moment ago.
    pub(crate) fn look(&self, now: Ticks, ledger: &Ledger) {
        if now.wall.saturating_sub(self.read.get()) < LOOKS {
            return;
        }
        self.read.set(now.wall);
        if let Some(delayed) = self.delays.read() {
            ledger.delayed.store(delayed, Ordering::Relaxed);
        }
    }
}

/// A ledger, or several together, at a moment or between two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry {
    pub(crate) busy: Ticks,
    exact: ByPhase,
    sampled: ByPhase,
    pub(crate) tasks: u64,
    pub(crate) items: u64,
    pub(crate) queued: u64,
    pub(crate) delayed: u64,
}

fn each(a: &ByPhase, b: &ByPhase, of: impl Fn(Ticks, Ticks) -> Ticks) -> ByPhase {
    std::array::from_fn(|phase| of(a[phase], b[phase]))
}

impl Entry {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            busy: self.busy.plus(other.busy),
            exact: each(&self.exact, &other.exact, Ticks::plus),
            sampled: each(&self.sampled, &other.sampled, Ticks::plus),
            tasks: self.tasks + other.tasks,
            items: self.items + other.items,
            queued: self.queued + other.queued,
            delayed: self.delayed + other.delayed,
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            busy: self.busy.since(before.busy),
            exact: each(&self.exact, &before.exact, Ticks::since),
            sampled: each(&self.sampled, &before.sampled, Ticks::since),
            tasks: self.tasks.saturating_sub(before.tasks),
            items: self.items.saturating_sub(before.items),
            queued: self.queued.saturating_sub(before.queued),
            delayed: self.delayed.saturating_sub(before.delayed),
        }
    }

    /// What each phase took: what was measured as it was, and of the rest the shares that the
    /// samples have. Where there is no sample, the rest is reading.
    pub(crate) fn by_phase(&self) -> ByPhase {
        let sum = |all: &ByPhase| all.iter().fold(Ticks::default(), |sum, own| sum.plus(*own));
        let rest = self.busy.since(sum(&self.exact));
        let samples = sum(&self.sampled);
        let share = |part: u64, of: u64, all: u64| match of {
            0 => 0,
            _ => (all as f64 * part as f64 / of as f64) as u64,
        };
        let mut phases = self.exact;
        for (phase, own) in phases.iter_mut().zip(&self.sampled) {
            *phase = phase.plus(Ticks {
                wall: share(own.wall, samples.wall, rest.wall),
                cpu: share(own.cpu, samples.cpu, rest.cpu),
            });
        }
        if samples.wall == 0 {
            let read = &mut phases[Phase::Read as usize];
            *read = read.plus(rest);
        }
        phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(wall: u64, cpu: u64) -> Ticks {
        Ticks { wall, cpu }
    }

    #[test]
    fn samples_share_what_was_not_measured_as_it_was() {
        let ledger = Ledger::default();
        let mut found = Sampled::default();
        found.taken[Phase::Read as usize] = ticks(300, 10);
        found.taken[Phase::Map as usize] = ticks(100, 90);
        ledger.add_sampled(&found);
        let mut exact = ByPhase::default();
        exact[Phase::Stack as usize] = ticks(1000, 500);
        ledger.add_exact(&exact);
        ledger.add_task(ticks(9000, 1500), 2, 3);
        let entry = ledger.entry();
        let phases = entry.by_phase();
        assert_eq!(phases[Phase::Read as usize], ticks(6000, 100));
        assert_eq!(phases[Phase::Map as usize], ticks(2000, 900));
        assert_eq!(phases[Phase::Stack as usize], ticks(1000, 500));
        assert_eq!((entry.tasks, entry.items, entry.queued), (1, 2, 3));
        // Twice the same is twice as much, and less what was before is the same again.
        let twice = entry.plus(entry);
        assert_eq!(twice.since(entry).by_phase(), phases);
    }

    #[test]
    fn sampling_stops_where_it_takes_more_than_its_share() {
        let ledger = Ledger::default();
        assert!(!ledger.samples(), "the first task");
        ledger.add_task(ticks(1000, 1000), 1, 0);
        assert!(ledger.samples());
        for _ in 0..4 {
            ledger.add_sampled(&Sampled {
                cost: 100,
                ..Sampled::default()
            });
            ledger.add_task(ticks(1000, 1000), 1, 0);
        }
        assert!(!ledger.samples());
        ledger.add_task(ticks(SHARE * 1000, 0), 1, 0);
        assert!(ledger.samples());
    }
}
