//! Use of the machine's cores by other programs.

use std::time::{Duration, Instant};

/// Share of the cores above which other programs disturb a measurement.
const BUSY: f64 = 0.25;
/// Share of the time that threads may wait for a core without counting as delayed.
const WAITED: f64 = 0.05;
/// Fewest ticks of all cores together that mean anything.
const FEWEST: u64 = 20;

/// Working time of the machine and of this process up to a moment.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    at: Instant,
    /// Ticks of all cores since the machine started.
    working: u64,
    total: u64,
    /// Ticks of this process.
    own: u64,
    /// How long this process's threads were ready without a core; `None` if the system does not
    /// tell.
    waited: Option<Duration>,
}

/// Use of the cores by other programs over a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Others {
    /// Cores in use by others.
    pub used: f64,
    /// Cores of the machine.
    pub cores: usize,
    /// Threads of this process that were ready and had no core, on average.
    pub(crate) waiting: Option<f64>,
}

impl Moment {
    /// Reads the current counters; `None` if the system does not tell.
    pub fn now() -> Option<Self> {
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

    /// Returns the use by others since then; `None` if the time was too short.
    pub fn since(&self) -> Option<Others> {
        let now = Self::now()?;
        let total = now.total.checked_sub(self.total);
        let total = total.filter(|total| *total >= FEWEST)?;
        let working = now.working.saturating_sub(self.working);
        let others = working.saturating_sub(now.own.saturating_sub(self.own));
        let cores = crate::cores();
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
    /// Returns whether others disturbed this process. In a container, cores that it may not use
    /// look busy but are not missed: its threads then wait for none.
    pub fn are_in_the_way(&self) -> bool {
        let waited = self.waiting.is_none_or(|waiting| waiting > WAITED);
        waited && self.use_many()
    }

    /// Returns whether others use so many cores that this process would lack some.
    pub(crate) fn use_many(&self) -> bool {
        self.used > BUSY * self.cores as f64
    }
}

/// Parses working ticks and all ticks from `/proc/stat`.
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, I/O wait, interrupts (2), stolen; guests are included in user.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((total - idle, total))
}

/// Parses user and system ticks from `/proc/self/stat`.
fn process(text: &str) -> Option<u64> {
    // The program's name may contain blanks and parentheses.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = ticks
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    (ticks.len() == 2).then(|| ticks.iter().sum())
}

/// Waiting time of all threads: the second number of each one's `schedstat`, in nanoseconds.
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
