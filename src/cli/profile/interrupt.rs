//! Ctrl-C and SIGTERM while layers are measured: nothing is kept of what was measured by then, which
//! is said.

use std::thread::{Builder, JoinHandle};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level;

use super::Progress;
use crate::say;
use gpipe_decide::BY_SIGNAL;

/// Listens until it is dropped; from then on a signal does what it does without.
#[derive(Debug)]
pub(super) struct Interrupt {
    /// None where the system has no thread or no signals for it: they then end the process, too.
    listening: Option<(Handle, JoinHandle<()>)>,
}

impl Interrupt {
    /// A signal takes the line of `progress` away and ends the process.
    pub(super) fn listen(progress: &Progress) -> Self {
        let progress = progress.clone();
        let listen = || -> std::io::Result<(Handle, JoinHandle<()>)> {
            let mut signals = Signals::new([SIGINT, SIGTERM])?;
            let handle = signals.handle();
            let thread = Builder::new().name("signals".to_owned()).spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    progress.finish();
                    say("stopped while measuring; nothing was written");
                    // At once: other threads are in the midst of layers.
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
            // It panics nowhere, and what it had to say is said.
            let _ = thread.join();
        }
    }
}
