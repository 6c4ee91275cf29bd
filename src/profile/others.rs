//! What other programs take of the machine's cores.

use std::time::{Duration, Instant};

/// Others that use more than this share of the cores are in the way.
const BUSY: f64 = 0.25;
/// Threads that were ready and had no core for less than this share of the time were not
/// kept waiting.
const WAITED: f64 = 0.05;
/// The system counts in ticks: fewer of all cores together say nothing.
const FEWEST: u64 = 20;

/// The working time of the machine and of this process up to a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    at: Instant,
    /// Ticks of all cores since the machine started.
    working: u64,
    total: u64,
    /// Ticks of this process.
    own: u64,
    /// How long this process's threads were ready without a core; none where the system
    /// does not tell.
    waited: Option<Duration>,
}

/// What other programs took of the cores for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Others {
    /// Cores.
    pub(crate) used: f64,
    /// Cores of the machine.
    pub(crate) cores: usize,
    /// Threads of this process that were ready and had no core, on average.
    pub(crate) waiting: Option<f64>,
}

impl Moment {
    /// None where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (working, total) = machine(&stat)?;
        Some(Self {
            at: Instant::now(),
            working,
            total,
            own: process(&own)?,
            waited: waited(),
        })
    }

    /// What others took since then; none where that was too short a time.
    pub(crate) fn since(&self) -> Option<Others> {
        let now = Self::now()?;
        let total = now.total.checked_sub(self.total);
        let total = total.filter(|total| *total >= FEWEST)?;
        let working = now.working.saturating_sub(self.working);
        let others = working.saturating_sub(now.own.saturating_sub(self.own));
        let cores = crate::torch::cores();
        let waited = now.waited.zip(self.waited);
        let elapsed = now.at.duration_since(self.at).as_secs_f64();
        Some(Others {
            used: cores as f64 * others as f64 / total as f64,
            cores,
            waiting: waited.map(|(now, then)| now.saturating_sub(then).as_secs_f64() / elapsed),
        })
    }
}

impl Others {
    /// Whether they were in the way of this process. Cores that a container may not use are
    /// others' without being missed: its threads then wait for none.
    pub(crate) fn are_in_the_way(&self) -> bool {
        let waited = self.waiting.is_none_or(|waiting| waiting > WAITED);
        waited && self.use_many()
    }

    /// Whether they use so many cores that this process would lack some.
    pub(crate) fn use_many(&self) -> bool {
        self.used > BUSY * self.cores as f64
    }
}

/// Working ticks and all ticks, of `/proc/stat`.
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, waiting for disks, interrupts (2), stolen; guests are in user.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((total - idle, total))
}

/// User and system ticks, of `/proc/self/stat`.
fn process(text: &str) -> Option<u64> {
    // The program's name may have blanks and parentheses.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = ticks
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    (ticks.len() == 2).then(|| ticks.iter().sum())
}

/// Of all threads: the second number of each one's `schedstat`, in nanoseconds.
fn waited() -> Option<Duration> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let of = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    // A thread may end meanwhile.
    let known: Vec<u64> = tasks.filter_map(of).collect();
    (!known.is_empty()).then(|| Duration::from_nanos(known.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_the_systems_files() {
        let stat = "cpu  10 1 5 100 4 1 1 0 7 0\ncpu0 1 2 3\n";
        assert_eq!(machine(stat), Some((18, 122)));
        assert_eq!(machine("intr 5"), None);
        let own = "42 (a (b) c) R 1 2 3 4 5 6 7 8 9 10 110 12 13 14";
        assert_eq!(process(own), Some(122));
        assert_eq!(process("42 (a) R 1 2"), None);
    }

    #[test]
    fn others_are_in_the_way_only_where_somebody_waits_for_them() {
        let others = |used, waiting| Others {
            used,
            cores: 2,
            waiting,
        };
        assert!(others(1.0, Some(0.5)).are_in_the_way());
        assert!(others(1.0, None).are_in_the_way());
        assert!(!others(1.0, Some(0.01)).are_in_the_way());
        assert!(!others(0.4, Some(0.5)).are_in_the_way());
    }
}
