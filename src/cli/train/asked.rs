//! What a signal does, said when it comes: the run ends after its step, which may take minutes.
//!
//! A second signal ends the process at once, when it can say nothing any more: what is left of the run
//! then is said at the first.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use gpipe_partitioner::words::quoted;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, low_level};

use super::called;
use crate::checkpoint::Checkpoint;

/// Says it for as long as this is there.
#[derive(Debug)]
pub(super) struct Listening(Vec<SigId>);

impl Listening {
    /// Has `speak` say what is `left` of the run when a signal comes.
    ///
    /// # Errors
    /// The system has no more files or threads.
    pub(super) fn begin(
        speak: impl Fn(&str) + Send + 'static,
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
                // Without a byte nobody listens any more.
                if heard.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
                    speak(&format!(
                        "stopping after this step; a second signal (Ctrl-C) ends the process at once: {}",
                        left()
                    ));
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

/// What is left of a run whose process ends in the midst of a step.
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
