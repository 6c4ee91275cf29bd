//! How long a thread that waits stays awake.

use std::time::{Duration, Instant};

/// How long a thread watches for something before it goes to sleep.
///
/// Waking a sleeping thread costs the one that wakes it a system call and delays
/// the sleeper by tens of microseconds; most waits inside a step are shorter than
/// that. At every look the watcher offers its core to others: the one it waits for
/// may need it, wherever there are more busy threads than cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin(Duration);

impl Spin {
    /// Goes to sleep at once.
    pub(super) const NONE: Self = Self(Duration::ZERO);

    /// Several times what it takes to put a thread to sleep and to wake it, so that
    /// waits of the length of a short action end awake.
    pub(super) const BRIEF: Self = Self(Duration::from_micros(100));

    /// Stays awake until `seen`, or until patience is at its end.
    pub(super) fn until(self, seen: impl Fn() -> bool) {
        const LOOKS_PER_CLOCK_READING: u32 = 8;
        if self.0.is_zero() || seen() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < self.0 {
            for _ in 0..LOOKS_PER_CLOCK_READING {
                if seen() {
                    return;
                }
                std::thread::yield_now();
            }
        }
    }
}
