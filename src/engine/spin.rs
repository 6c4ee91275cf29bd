//! Spinning before a waiting thread goes to sleep.

use std::time::{Duration, Instant};

/// Time for which a thread spins before it goes to sleep.
///
/// Waking a sleeping thread costs the waker a system call and delays the sleeper by tens of
/// microseconds; most waits inside a step are shorter than that. The spinning thread yields its
/// core after every look: where there are more busy threads than cores, the thread that it waits
/// for may need the core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin(Duration);

impl Spin {
    /// Goes to sleep at once.
    pub(super) const NONE: Self = Self(Duration::ZERO);

    /// Several times the cost of putting a thread to sleep and waking it, so that waits as long as
    /// a short action end awake.
    pub(super) const BRIEF: Self = Self(Duration::from_micros(100));

    /// Spins until `seen` or until the time is over.
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
