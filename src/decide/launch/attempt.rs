//! One start of all processes, until the last one has ended.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::children::{Failed, Plan, Running};
use super::output::Forwarding;

/// When one has failed, the others have so long to end by themselves, then as long as this to
/// end once they were told to (SIGTERM), before they are killed.
const BY_THEMSELVES: Duration = Duration::from_secs(1);
const ONCE_TOLD: Duration = Duration::from_secs(5);
/// What is printed at the very end is waited for so long.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// This Ctrl-C kills.
const LAST_CTRL_C: usize = 3;

/// How the processes have ended.
#[derive(Debug)]
pub(super) enum Ended {
    Well,
    /// The one that failed first.
    Badly(Failed),
}

/// Starts processes, and passes signals on to them.
#[derive(Debug)]
pub(super) struct Attempt {
    signals: Receiver<i32>,
    asked_to_end: usize,
    /// The first that asked.
    by: Option<i32>,
}

/// What is next to be done to processes that are left when one has failed.
#[derive(Debug, Clone, Copy)]
enum Next {
    Nothing,
    Tell(Instant),
    Kill(Instant),
}

impl Attempt {
    /// From here on signals are passed on.
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM]).context("no signals")?;
        let (sender, receiver) = mpsc::channel();
        let listening = thread::Builder::new().name("signals".to_owned());
        let listening = listening.spawn(move || {
            for signal in signals.forever() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        });
        listening.context("no thread for signals")?;
        Ok(Self {
            signals: receiver,
            asked_to_end: 0,
            by: None,
        })
    }

    /// Ctrl-C or SIGTERM, the one that came first.
    pub(super) fn was_asked_to_end(&self) -> Option<i32> {
        self.by
    }

    /// Starts all processes, and waits for the end of all.
    pub(super) fn run(&mut self, plan: &Plan) -> anyhow::Result<Ended> {
        let output = Forwarding::new();
        let mut running = Vec::new();
        for local_rank in 0..plan.processes {
            match plan.start(local_rank, &output) {
                Ok(process) => running.push(process),
                Err(error) => {
                    all(&running, Signal::KILL);
                    let rank = plan.first + local_rank;
                    return Err(error).context(format!("rank {rank} cannot be started"));
                }
            }
        }
        let ended = self.until_all_have_ended(&mut running);
        if ended.is_err() {
            all(&running, Signal::KILL);
        }
        output.finish(LAST_WORDS);
        Ok(ended?)
    }

    fn until_all_have_ended(&mut self, running: &mut [Running]) -> io::Result<Ended> {
        let mut first: Option<Failed> = None;
        let mut next = Next::Nothing;
        loop {
            for process in running.iter_mut() {
                let Some(status) = process.ended()? else {
                    continue;
                };
                let failed = Failed {
                    rank: process.rank,
                    status,
                };
                // What was told to end did not fail by itself. The others of a process that is
                // killed may end before it is seen that it did: it is the one to name.
                let counts = !status.success() && !matches!(next, Next::Kill(_));
                let replaces = first
                    .is_none_or(|first| first.has_lost_another() && !failed.has_lost_another());
                if counts && replaces {
                    first = Some(failed);
                }
            }
            if running.iter().all(Running::is_over) {
                return Ok(first.map_or(Ended::Well, Ended::Badly));
            }
            next = escalated(running, first, next);
            self.wait(running, next);
        }
    }

    /// Waits for something to happen, and passes signals on.
    fn wait(&mut self, running: &[Running], next: Next) {
        let event = match next {
            Next::Nothing => self
                .signals
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Next::Tell(at) | Next::Kill(at) => {
                let left = at.saturating_duration_since(Instant::now());
                self.signals.recv_timeout(left)
            }
        };
        let (number, signal) = match event {
            Ok(SIGINT) => (SIGINT, Signal::INT),
            Ok(SIGTERM) => (SIGTERM, Signal::TERM),
            // A process has ended, or it is time.
            _ => return,
        };
        self.asked_to_end += 1;
        self.by.get_or_insert(number);
        let last = self.asked_to_end >= LAST_CTRL_C;
        all(running, if last { Signal::KILL } else { signal });
    }
}

fn all(running: &[Running], signal: Signal) {
    for process in running {
        process.signal(signal);
    }
}

/// Ends the processes that are left when one has failed, more firmly from time to time.
fn escalated(running: &[Running], first: Option<Failed>, next: Next) -> Next {
    let now = Instant::now();
    match next {
        Next::Nothing if first.is_some() => Next::Tell(now + BY_THEMSELVES),
        Next::Tell(at) if now >= at => {
            all(running, Signal::TERM);
            Next::Kill(now + ONCE_TOLD)
        }
        Next::Kill(at) if now >= at => {
            all(running, Signal::KILL);
            Next::Kill(now + ONCE_TOLD)
        }
        same => same,
    }
}
