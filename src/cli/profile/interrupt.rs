//! Handles Ctrl-C and SIGTERM during profiling: reports that the measurements are discarded.

use std::thread::{Builder, JoinHandle};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level;

use super::Progress;
use crate::say;
use gpipe_decide::BY_SIGNAL;

/// Listens until dropped; afterwards signals have their default effect.
#[derive(Debug)]
pub(super) struct Interrupt {
    /// `None` if the system has no thread or signals for it: signals then have their default effect.
    listening: Option<(Handle, JoinHandle<()>)>,
}

impl Interrupt {
    /// Starts listening: a signal clears the line of `progress` and ends the process.
    pub(super) fn listen(progress: &Progress) -> Self {
        let progress = progress.clone();
        let listen = || -> std::io::Result<(Handle, JoinHandle<()>)> {
            let mut signals = Signals::new([SIGINT, SIGTERM])?;
            let handle = signals.handle();
            let thread = Builder::new().name("signals".to_owned()).spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    progress.finish();
                    say("stopped while measuring; nothing was written");
                    // At once, as other threads are in the middle of layers.
                    low_level::exit(BY_SIGNAL + signal);
                }
            })?;
            Ok((handle, thread))
        };
        Self {
            listening: listen().ok(),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.listening.take() {
            handle.close();
            // The thread does not panic, and its message was printed.
            let _ = thread.join();
        }
    }
}
