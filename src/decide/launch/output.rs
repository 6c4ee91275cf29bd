//! Output of the processes, a line at a time, with the rank before each line.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::output::{width, wrapped};

/// Longest part of a line that is buffered before it is written, in bytes.
const LONGEST: u64 = 64 << 10;

/// Destination of lines.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The threads that forward lines.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// Dropped by each thread at its end.
    running: Sender<Held>,
    ended: Receiver<Held>,
    said: Arc<Errors>,
}

/// Error lines of a rank that another rank had printed before.
#[derive(Debug)]
struct Held {
    rank: usize,
    lines: Vec<Vec<u8>>,
}

/// Errors printed so far, each with the rank that printed it first.
#[derive(Debug, Default)]
struct Errors(Mutex<HashMap<String, usize>>);

impl Errors {
    /// Whether another rank has printed this line, if it is an error; `prefix` is the rank's own.
    fn has_of_another(&self, rank: usize, prefix: &str, line: &[u8]) -> bool {
        let line = String::from_utf8_lossy(line).replace(prefix, "");
        if !line.starts_with("error: ") {
            return false;
        }
        // Ignores line breaks, which depend on the prefix.
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *said.entry(words).or_insert(rank) != rank
    }
}

impl Forwarding {
    pub(super) fn new() -> Self {
        let (running, ended) = mpsc::channel();
        let said = Arc::default();
        Self {
            running,
            ended,
            said,
        }
    }

    /// Forwards the output of a process, until it closes the pipe.
    pub(super) fn forward(
        &self,
        from: impl Read + Send + 'static,
        rank: usize,
        to: Stream,
    ) -> io::Result<()> {
        let (running, said) = (self.running.clone(), Arc::clone(&self.said));
        let thread = thread::Builder::new().name(format!("output-{rank}"));
        thread.spawn(move || {
            let prefix = format!("[rank {rank}] ");
            let terminal = match to {
                Stream::Out => io::stdout().is_terminal(),
                Stream::Err => io::stderr().is_terminal(),
            };
            let width = if terminal { width(None) } else { usize::MAX };
            let mut held = Vec::new();
            lines(from, (&prefix, width), |line| match to {
                Stream::Out => written(&mut io::stdout().lock(), line),
                Stream::Err if said.has_of_another(rank, &prefix, line) => held.push(line.to_vec()),
                Stream::Err => written(&mut io::stderr().lock(), line),
            });
            // Fails only if nobody waits for the lines any more.
            let _ = running.send(Held { rank, lines: held });
        })?;
        Ok(())
    }

    /// Waits until everything is forwarded, for `at_most` (descendants of a process may hold its
    /// pipes). An error of wrong use that several ranks report is printed for one of them.
    pub(super) fn finish(self, at_most: Duration, is_wrong_use: impl Fn(usize) -> bool) {
        let until = Instant::now() + at_most;
        drop(self.running);
        while let Ok(held) = self
            .ended
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if !is_wrong_use(held.rank) {
                let lines = held.lines.iter();
                lines.for_each(|line| written(&mut io::stderr().lock(), line));
            }
        }
    }
}

/// Writes a line; if nobody reads any more, drops it: the processes go on.
fn written(to: &mut impl Write, line: &[u8]) {
    let _ = to.write_all(line).and_then(|()| to.flush());
}

/// Calls `give` with each line, prefixed, and broken between words beyond `width` columns. A line of
/// excessive length comes in several parts.
fn lines(from: impl Read, (prefix, width): (&str, usize), mut give: impl FnMut(&[u8])) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = prefix.as_bytes().to_vec();
        match (&mut from).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(read) if read > 0 => {
                if !line.ends_with(b"\n") {
                    line.push(b'\n');
                }
                give(&broken(line, prefix, width));
            }
            _ => return,
        }
    }
}

/// Returns a line of at most `width` columns as it is, a longer one as several, each with the prefix.
fn broken(line: Vec<u8>, prefix: &str, width: usize) -> Vec<u8> {
    if line.len() <= width {
        return line;
    }
    let text = String::from_utf8_lossy(&line[prefix.len()..]);
    let room = width.saturating_sub(prefix.len());
    if text.trim_end().chars().count() <= room {
        return line;
    }
    let lines = wrapped(text.trim_end(), room);
    let lines = lines.lines().map(|own| format!("{prefix}{own}\n"));
    lines.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: each of nine processes printed the same error.
    #[test]
    fn errors_of_another_rank_are_told_from_other_lines() {
        let said = Errors::default();
        let of = |rank: usize, line: &str| {
            let prefix = format!("[rank {rank}] ");
            said.has_of_another(rank, &prefix, format!("{prefix}{line}\n").as_bytes())
        };
        assert!(!of(0, "error: 9 stages") && !of(0, "error: 9 stages"));
        assert!(of(3, "error: 9 stages") && of(10, "error: 9\n[rank 10] stages"));
        assert!(!of(3, "error: 8 stages"));
        assert!(!of(0, "step 1") && !of(3, "step 1"));
    }

    #[test]
    fn each_line_has_the_prefix() {
        let prefixed = |text: &[u8]| {
            let mut all = Vec::new();
            lines(text, ("[rank 3] ", 80), |line| all.extend_from_slice(line));
            String::from_utf8(all).unwrap()
        };
        assert_eq!(prefixed(b""), "");
        assert_eq!(prefixed(b"a\n\nb"), "[rank 3] a\n[rank 3] \n[rank 3] b\n");
        // Regression: a terminal broke such lines within words, and the rest had no rank.
        let words = "word ".repeat(20);
        let line = |count: usize| format!("[rank 3] {}\n", "word ".repeat(count).trim_end());
        assert_eq!(prefixed(words.as_bytes()), line(14) + &line(6));
        let long = prefixed(&vec![b'x'; LONGEST as usize + 1]);
        assert!(long.ends_with("x\n[rank 3] x\n"));
    }
}
