//! Clocks for measuring loading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Readings of two clocks, or differences of readings, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) wall: u64,
    /// CPU time of the thread.
    pub(crate) cpu: u64,
}

impl Ticks {
    pub(crate) fn now() -> Self {
        Self {
            wall: wall(),
            cpu: read(ClockId::ThreadCPUTime),
        }
    }

    /// Returns the time since an earlier reading.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            wall: self.wall.saturating_sub(before.wall),
            cpu: self.cpu.saturating_sub(before.cpu),
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            wall: self.wall + other.wall,
            cpu: self.cpu + other.cpu,
        }
    }
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let whole = Duration::new(time.tv_sec.unsigned_abs(), 0).as_nanos() as u64;
    whole + time.tv_nsec as u64
}

/// Returns the monotonic time.
pub(crate) fn wall() -> u64 {
    read(ClockId::Monotonic)
}

/// Returns the CPU time of all threads of this process.
pub(crate) fn process_cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// Time that the creating thread has been runnable without a core, if the system reports it.
#[derive(Debug, Default)]
pub(super) struct Delays(Option<File>);

impl Delays {
    pub(super) fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Returns nanoseconds since the thread started.
    pub(super) fn read(&self) -> Option<u64> {
        let mut text = [0; 96];
        let read = |file: &File| -> io::Result<usize> { file.read_at(&mut text, 0) };
        let length = self.0.as_ref().map(read)?.ok()?;
        second(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// Parses the second number of `schedstat`: time on a core, time waiting for one, number of time
/// slices.
fn second(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_core_is_the_second_number() {
        assert_eq!(second("565103 203677 2\n"), Some(203_677));
        assert_eq!(second(""), None);
    }

    #[test]
    fn working_takes_time_on_a_core_and_waiting_takes_none() {
        let begin = Ticks::now();
        while Ticks::now().since(begin).cpu < 1_000_000 {}
        let worked = Ticks::now().since(begin);
        assert!(worked.wall >= worked.cpu, "{worked:?}");
    }
}
