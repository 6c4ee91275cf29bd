//! A message if an answer takes long.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::say;

/// Waits shorter than this are silent.
const LONG: Duration = Duration::from_secs(2);

/// Prints a line if it is not dropped within two seconds.
#[derive(Debug)]
pub(super) struct SlowNotice {
    /// Closes the channel when dropped.
    _done: Sender<()>,
}

impl SlowNotice {
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
        // Without a thread there is no message, but the answer comes all the same.
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
        let long = SlowNotice::over(Duration::ZERO, move || own.send("long").unwrap());
        assert_eq!(hear.recv(), Ok("long"));
        drop(long);
        drop(SlowNotice::over(Duration::MAX, move || {
            said.send("short").unwrap()
        }));
        // The thread has dropped its end without a message.
        assert!(hear.recv().is_err());
    }
}
