//! What the processes print, a line at a time, with the rank before each line.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The longest part of a line that is kept before it is written, in bytes.
const LONGEST: u64 = 64 << 10;

/// Where lines go.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The threads that pass lines on.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// Dropped by each thread at its end.
    running: Sender<()>,
    ended: Receiver<()>,
}

impl Forwarding {
    pub(super) fn new() -> Self {
        let (running, ended) = mpsc::channel();
        Self { running, ended }
    }

    /// Passes on what this process prints, until it closes the pipe.
    pub(super) fn forward(
        &self,
        from: impl Read + Send + 'static,
        rank: usize,
        to: Stream,
    ) -> io::Result<()> {
        let running = self.running.clone();
        let thread = thread::Builder::new().name(format!("output-{rank}"));
        thread.spawn(move || {
            let prefix = format!("[rank {rank}] ");
            lines(from, &prefix, |line| match to {
                Stream::Out => written(&mut io::stdout().lock(), line),
                Stream::Err => written(&mut io::stderr().lock(), line),
            });
            drop(running);
        })?;
        Ok(())
    }

    /// Waits until everything is passed on, for so long at most: what a process has started may
    /// hold its pipes.
    pub(super) fn finish(self, at_most: Duration) {
        let until = Instant::now() + at_most;
        drop(self.running);
        while let Ok(()) = self
            .ended
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {}
    }
}

/// Where nobody reads any more, the lines are dropped: the processes go on.
fn written(to: &mut impl Write, line: &[u8]) {
    let _ = to.write_all(line).and_then(|()| to.flush());
}

/// Gives each line with the prefix. A line of excessive length comes in several.
fn lines(from: impl Read, prefix: &str, mut give: impl FnMut(&[u8])) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = prefix.as_bytes().to_vec();
        match (&mut from).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(read) if read > 0 => {
                if !line.ends_with(b"\n") {
                    line.push(b'\n');
                }
                give(&line);
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_prefix() {
        let prefixed = |text: &[u8]| {
            let mut all = Vec::new();
            lines(text, "[rank 3] ", |line| all.extend_from_slice(line));
            String::from_utf8(all).unwrap()
        };
        assert_eq!(prefixed(b""), "");
        assert_eq!(prefixed(b"a\n\nb"), "[rank 3] a\n[rank 3] \n[rank 3] b\n");
        let long = prefixed(&vec![b'x'; LONGEST as usize + 1]);
        assert!(long.ends_with("x\n[rank 3] x\n"));
    }
}
