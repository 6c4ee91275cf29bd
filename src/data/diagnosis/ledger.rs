//! Counters of the work of a loader's threads, each written by its own thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::{Delays, Ticks};
use super::phase::{ByPhase, Phase, Sampled};

/// Sums written by one thread and read by others.
#[derive(Debug, Default)]
struct Sums {
    wall: AtomicU64,
    cpu: AtomicU64,
}

impl Sums {
    /// There is a single writer, so no addition is lost.
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

/// Work done by one thread.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Total time.
    busy: Sums,
    /// Time of fully measured work, by phase.
    exact: [Sums; Phase::ALL.len()],
    /// Time of sampled items of the rest, by phase.
    sampled: [Sums; Phase::ALL.len()],
    /// Overhead of sampling in nanoseconds.
    cost: AtomicU64,
    /// Completed tasks, and their items.
    tasks: AtomicU64,
    items: AtomicU64,
    /// Sum of the queue lengths when tasks were taken.
    queued: AtomicU64,
    /// Nanoseconds in which the thread was runnable without a core.
    delayed: AtomicU64,
}

/// Sampling may take one part in this many of the time.
const SHARE: u64 = 256;
/// The first tasks are always sampled, except the very first, which runs with cold caches.
const FIRST: std::ops::Range<u64> = 1..4;

impl Ledger {
    /// Whether to sample the next items.
    pub(crate) fn samples(&self) -> bool {
        let tasks = self.tasks.load(Ordering::Relaxed);
        let cost = self.cost.load(Ordering::Relaxed);
        FIRST.contains(&tasks) || cost < self.busy.get().wall / SHARE
    }

    /// Number of completed tasks, which determines the place of the next sample.
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

    /// Adds fully measured work.
    pub(crate) fn add_whole(&self, taken: &ByPhase) {
        self.add_exact(taken);
        let all = taken
            .iter()
            .fold(Ticks::default(), |sum, own| sum.plus(*own));
        self.busy.add(all);
    }

    /// Adds a completed task: its duration, its items, and the queue length when it was taken.
    pub(crate) fn add_task(&self, took: Ticks, items: usize, queued: usize) {
        self.busy.add(took);
        add(&self.items, items as u64);
        add(&self.queued, queued as u64);
        add(&self.tasks, 1);
    }

    /// Returns the present sums.
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

/// Reads the scheduling delay of its thread now and then, as each reading is a system call.
#[derive(Debug, Default)]
pub(crate) struct DelayReader {
    delays: Delays,
    read: Cell<u64>,
}

/// Nanoseconds between readings.
const LOOKS: u64 = 10_000_000;

impl DelayReader {
    pub(crate) fn new() -> Self {
        Self {
            delays: Delays::of_this_thread(),
            read: Cell::new(0),
        }
    }

    /// Records the delay, unless it was recorded a moment ago.
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

/// Sums of one or several ledgers, at a moment or between two.
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

    /// Returns the time per phase: measured work, plus the rest split like its samples. Without
    /// samples, the rest counts as reading.
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
        // Doubling and subtracting gives the original.
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
