//! A word where an answer is long in coming.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::say;

/// What takes no longer says nothing.
const LONG: Duration = Duration::from_secs(2);

/// Says a line if this is still there after two seconds.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Hangs up when it is dropped.
    _done: Sender<()>,
}

impl Waiting {
    pub(super) fn begin(line: &'static str) -> Self {
        Self::over(LONG, move || say(line))
    }

    fn over(time: Duration, speak: impl FnOnce() + Send + 'static) -> Self {
        let (done, wait) = mpsc::channel::<()>();
        let listen = move || {
            if wait.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                speak();
            }
        };
        // Without a thread nothing is said, and the answer comes all the same.
        let _ = thread::Builder::new()
            .name("waiting".to_owned())
            .spawn(listen);
        Self { _done: done }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_said_and_what_is_over_is_not() {
        let (said, hear) = mpsc::channel();
        let own = said.clone();
        let long = Waiting::over(Duration::ZERO, move || own.send("long").unwrap());
        assert_eq!(hear.recv(), Ok("long"));
        drop(long);
        drop(Waiting::over(Duration::MAX, move || {
            said.send("short").unwrap()
        }));
        // The thread has dropped its end without a word.
        assert!(hear.recv().is_err());
    }
}
