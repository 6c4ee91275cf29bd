//! One start of all processes, until the last one has ended.

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

/// When one has failed, the others have so long to end by themselves, then as long as this to
/// end once they were told to (SIGTERM), before they are killed.
const BY_THEMSELVES: Duration = Duration::from_secs(1);
const ONCE_TOLD: Duration = Duration::from_secs(5);
/// A process that is stopped (SIGSTOP) is killed after so long: that is how long the processes of a run
/// wait for one of them, once they have met.
const STOPPED: Duration = Duration::from_secs(10);
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

impl Next {
    /// When.
    fn at(self) -> Option<Instant> {
        match self {
            Self::Nothing => None,
            Self::Tell(at) | Self::Kill(at) => Some(at),
        }
    }
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
        // One alone keeps nobody waiting.
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

    /// `waited_for`: whether others wait for a process that is stopped.
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
            let stopped = if waited_for { stopped(running) } else { None };
            let until = [next.at(), stopped].into_iter().flatten().min();
            self.wait(running, until);
        }
    }

    /// Waits for something to happen, until then at most, and passes signals on.
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
            // A process has ended, stops or goes on, or it is time.
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

/// Says which processes are stopped, and kills those that are for too long. *Returns* when the next one
/// will be.
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
