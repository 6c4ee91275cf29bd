//! One start of all processes, until the last of them has ended.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::super::say;
use super::children::{Failed, Plan, Running};
use super::output::Forwarding;

/// After one process has failed, time for the others to end by themselves, then time to end after
/// SIGTERM, before they are killed.
const BY_THEMSELVES: Duration = Duration::from_secs(1);
const ONCE_TOLD: Duration = Duration::from_secs(5);
/// Time after which a stopped process (SIGSTOP) is killed: as long as the processes of a run wait for
/// each other, once they have met.
const STOPPED: Duration = Duration::from_secs(10);
/// Longest wait for output printed at the very end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Number of Ctrl-C that kills.
const LAST_CTRL_C: usize = 3;

/// Result of all processes together.
#[derive(Debug)]
pub(super) enum Ended {
    Well,
    /// The process that failed first.
    Badly(Failed),
}

/// Starts processes, and passes signals on to them.
#[derive(Debug)]
pub(super) struct Attempt {
    signals: Receiver<i32>,
    asked_to_end: usize,
    /// The first signal that asked.
    by: Option<i32>,
}

/// Next action on the processes left after one has failed.
#[derive(Debug, Clone, Copy)]
enum Next {
    Nothing,
    Tell(Instant),
    Kill(Instant),
}

impl Next {
    /// Time of the action.
    fn at(self) -> Option<Instant> {
        match self {
            Self::Nothing => None,
            Self::Tell(at) | Self::Kill(at) => Some(at),
        }
    }
}

impl Attempt {
    /// Starts passing signals on.
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

    /// Returns the signal that first asked for the end: Ctrl-C or SIGTERM.
    pub(super) fn was_asked_to_end(&self) -> Option<i32> {
        self.by
    }

    /// Starts all processes, and waits until all have ended.
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
        // A single process keeps nobody waiting.
        let waited_for = plan.size > 1;
        let ended = self.until_all_have_ended(&mut running, waited_for);
        if ended.is_err() {
            all(&running, Signal::KILL);
        }
        let of_rank = |rank: usize| running.iter().find(|own| own.rank == rank);
        let is_wrong_use = |rank: usize| of_rank(rank).is_some_and(Running::is_wrong_use);
        output.finish(LAST_WORDS, is_wrong_use);
        Ok(ended?)
    }

    /// `waited_for`: whether others wait for a stopped process.
    fn until_all_have_ended(
        &mut self,
        running: &mut [Running],
        waited_for: bool,
    ) -> io::Result<Ended> {
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
                // A process that was told to end did not fail by itself. If one is killed, the others
                // may be seen to end before it: the killed one is reported.
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
            let stopped = if waited_for { stopped(running) } else { None };
            let until = [next.at(), stopped].into_iter().flatten().min();
            self.wait(running, until);
        }
    }

    /// Waits for an event, until `until` at most, and passes signals on.
    fn wait(&mut self, running: &[Running], until: Option<Instant>) {
        let event = match until {
            None => self
                .signals
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                self.signals.recv_timeout(left)
            }
        };
        let (number, signal) = match event {
            Ok(SIGINT) => (SIGINT, Signal::INT),
            Ok(SIGTERM) => (SIGTERM, Signal::TERM),
            // A process ended, stopped or continued, or the time is over.
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

/// Prints which processes are stopped, and kills those stopped for too long. *Returns* when the next
/// one is due.
fn stopped(running: &mut [Running]) -> Option<Instant> {
    for process in running.iter_mut() {
        if let Some(signal) = process.newly_stopped() {
            say(&format!(
                "rank {} is stopped (signal {signal}), and the others wait for it: it is killed in \
                 {} s, unless `kill -CONT {}` has it go on",
                process.rank,
                STOPPED.as_secs(),
                process.id()
            ));
        }
    }
    let now = Instant::now();
    let mut next = None;
    for process in running.iter() {
        let Some(at) = process.stopped().map(|since| since + STOPPED) else {
            continue;
        };
        if at <= now {
            process.signal(Signal::KILL);
        } else {
            next = Some(next.map_or(at, |next: Instant| next.min(at)));
        }
    }
    next
}

/// Ends the processes left after one has failed: first waits, then SIGTERM, then SIGKILL.
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
