//! What a signal does, said when it comes: the run ends after its step, which may take minutes.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, low_level};

const SAID: &str = "stopping after this step; asked once more, the process ends at once, and steps behind the \
                    newest checkpoint are lost";

/// Says it for as long as this is there.
#[derive(Debug)]
pub(super) struct Listening(Vec<SigId>);

impl Listening {
    /// # Errors
    /// The system has no more files or threads.
    pub(super) fn begin(speak: impl Fn(&str) + Send + 'static) -> io::Result<Self> {
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
                    speak(SAID);
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
