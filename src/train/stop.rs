//! Ctrl-C, SIGTERM and SIGHUP: the first one ends the run after the step, a second one at
//! once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// What a process that a signal ended leaves as its exit code, less the signal's number.
const ENDED_BY: i32 = 128;

/// Whether the run is to end.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens from now on.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        // Under `nohup` a run is to outlive its terminal.
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            // In this order: the first signal sees the flag as it was before it.
            flag::register_conditional_shutdown(signal, ENDED_BY + signal, Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self(asked))
    }

    /// Whether a signal has come.
    pub(super) fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// From now on a signal ends the process at once: there is nothing left to save.
    pub(super) fn at_once(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Whether this process was started so that a signal does nothing, where Linux says so.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = (status.lines()).find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
