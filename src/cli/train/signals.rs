//! Explains a signal's effect when it arrives: the run ends after its step, which may take minutes, or
//! before the held-out evaluation.
//!
//! A second signal ends the process at once without a message, so the first message says what will be
//! left of the run.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpipe_partitioner::words::quoted;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, low_level};

use super::called;
use gpipe_train::Hook;
use gpipe_train::checkpoint::Checkpoint;

/// Whether all steps are done and the held-out data is being evaluated.
#[derive(Clone, Debug, Default)]
pub(super) struct Measuring(Arc<AtomicBool>);

impl Measuring {
    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Hook for Measuring {
    fn held_out(&mut self, _: Option<usize>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Listens for signals until dropped.
#[derive(Debug)]
pub(super) struct Listening(Vec<SigId>);

impl Listening {
    /// Calls `speak` when a signal arrives, with its effect and with what is `left` of the run if a
    /// step is cut short.
    ///
    /// # Errors
    /// The system has no more files or threads.
    pub(super) fn begin(
        speak: impl Fn(&str) + Send + 'static,
        measuring: Measuring,
        left: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (mut heard, signalled) = UnixStream::pair()?;
        let mut own = Self(Vec::new());
        for signal in [SIGINT, SIGTERM] {
            let signalled = signalled.try_clone()?;
            own.0.push(low_level::pipe::register(signal, signalled)?);
        }
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                // No byte: the listener has ended.
                if heard.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
                    speak(&said(measuring.has_begun(), left));
                }
            })?;
        Ok(own)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// Describes a signal's effect.
fn said(measuring: bool, left: impl Fn() -> String) -> String {
    const AT_ONCE: &str = "a second signal (Ctrl-C) ends the process at once";
    if measuring {
        return format!(
            "all steps are done; stopping before the held-out loss is measured; {AT_ONCE}"
        );
    }
    format!("stopping after this step; {AT_ONCE}: {}", left())
}

/// Describes what is left of a run whose process ends in mid-step.
pub(super) fn left(run: &Path, checkpoints: &Path, saves: bool) -> String {
    if !saves {
        return "nothing of the run is saved, as checkpoint.every is 0".to_owned();
    }
    let listed = Checkpoint::list(checkpoints).unwrap_or_default();
    match listed.last() {
        Some(newest) => format!(
            "`{} train --resume {}` then goes on after step {}, that of the newest checkpoint",
            called(),
            quoted(run),
            newest.step
        ),
        None => "nothing of the run is saved yet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It announced a stop after a step, and resuming after one.
    #[test]
    fn while_the_held_out_loss_is_measured_no_step_is_left() {
        let mut measuring = Measuring::default();
        let told = |own: &Measuring| said(own.has_begun(), || "nothing".to_owned());
        assert!(told(&measuring).starts_with("stopping after this step; "));
        assert!(told(&measuring).ends_with(" at once: nothing"));
        measuring.clone().held_out(Some(3));
        let last = told(&measuring);
        assert!(last.starts_with("all steps are done; "), "{last}");
        assert!(
            !last.contains("this step") && !last.contains("nothing"),
            "{last}"
        );
        measuring.held_out(None);
        assert!(measuring.has_begun());
    }
}
