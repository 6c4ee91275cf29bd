//! How long a thread that waits stays awake.

use std::time::{Duration, Instant};

/// How long, and how, a thread watches for something before it goes to sleep.
///
/// Waking a sleeping thread costs the one that wakes it a system call and delays
/// the sleeper by several microseconds; most waits inside a step are shorter than
/// that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    time: Duration,
    /// Offer the core to others at every look.
    yields: bool,
}

impl Patience {
    /// Goes to sleep at once.
    pub(super) const NONE: Self = Self {
        time: Duration::ZERO,
        yields: false,
    };

    /// For `workers` threads on as many `cores`: where each has a core of its own
    /// it may keep it busy; anywhere else the one it waits for may need the core,
    /// so it offers it at every look, and for less long.
    pub(super) fn of(workers: usize, cores: usize) -> Self {
        if workers <= cores {
            Self {
                time: Duration::from_micros(50),
                yields: false,
            }
        } else {
            Self {
                time: Duration::from_micros(20),
                yields: true,
            }
        }
    }

    /// Stays awake until `seen`, or until patience is at its end.
    pub(super) fn watch(self, seen: impl Fn() -> bool) {
        const LOOKS_PER_CLOCK_READING: u32 = 8;
        if self.time.is_zero() || seen() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < self.time {
            for _ in 0..LOOKS_PER_CLOCK_READING {
                if seen() {
                    return;
                }
                self.pause();
            }
        }
    }

    fn pause(self) {
        if self.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
