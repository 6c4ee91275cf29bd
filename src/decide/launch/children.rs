//! The processes that are started, and the words that each of them is told.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, getppid, kill_process, kill_process_group,
    waitid,
};

use super::super::failure::{BY_SIGNAL, Failure};
use super::address::Address;
use super::output::{Forwarding, Stream};

/// Set in each process to the launcher's number.
const LAUNCHED: &str = "GPIPE_LAUNCHED_BY";

/// Exit code of a process that has lost another one: a new start may help (`EX_TEMPFAIL`).
const RESTART_MAY_HELP: i32 = 75;

/// Exit code of a process whose command line or data is wrong.
const WRONG_USE: i32 = 2;

/// What is to be started.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) program: PathBuf,
    pub(super) verb: Vec<OsString>,
    /// On this host.
    pub(super) processes: usize,
    /// The rank of the first one of them.
    pub(super) first: usize,
    /// On all hosts.
    pub(super) size: usize,
    pub(super) master: Address,
    pub(super) restarts: usize,
    pub(super) max_restarts: usize,
}

impl Plan {
    /// Starts one process. In a process group of its own: a terminal's Ctrl-C then reaches the
    /// launcher alone, which passes it on, once.
    pub(super) fn start(&self, local_rank: usize, output: &Forwarding) -> io::Result<Running> {
        let rank = self.first + local_rank;
        let mut command = Command::new(&self.program);
        // What messages repeat is what was typed, and starts: under pip this program itself does not.
        let called = std::env::args_os().next();
        command
            .arg0(called.unwrap_or_else(|| self.program.clone().into_os_string()))
            .args(&self.verb)
            .envs(self.words(local_rank))
            .env_remove("TORCHELASTIC_USE_AGENT_STORE")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        // Data of rank 0 is what it would be without a launcher, to the byte.
        if rank > 0 {
            command.stdout(Stdio::piped());
        }
        let mut child = command.spawn()?;
        if let Some(stdout) = child.stdout.take() {
            output.forward(stdout, rank, Stream::Out)?;
        }
        if let Some(stderr) = child.stderr.take() {
            output.forward(stderr, rank, Stream::Err)?;
        }
        Ok(Running {
            rank,
            child,
            is_over: false,
            is_wrong_use: false,
            stopped: None,
        })
    }

    fn words(&self, local_rank: usize) -> [(&'static str, String); 10] {
        let rank = self.first + local_rank;
        let run = if self.size == self.processes {
            format!("launch-{}", std::process::id())
        } else {
            "launch".to_owned()
        };
        [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", self.size.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.processes.to_string()),
            ("MASTER_ADDR", self.master.host.clone()),
            ("MASTER_PORT", self.master.port.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", self.restarts.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", self.max_restarts.to_string()),
            ("TORCHELASTIC_RUN_ID", run),
            (LAUNCHED, std::process::id().to_string()),
        ]
    }
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) rank: usize,
    child: Child,
    is_over: bool,
    is_wrong_use: bool,
    /// Since when it is stopped, as by SIGSTOP.
    stopped: Option<Instant>,
}

impl Running {
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether it has ended because what it was told to do is wrong.
    pub(super) fn is_wrong_use(&self) -> bool {
        self.is_wrong_use
    }

    /// How it has ended, once.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.is_over {
            return Ok(None);
        }
        let status = self.child.try_wait()?;
        self.is_over = status.is_some();
        self.is_wrong_use = status.is_some_and(|status| status.code() == Some(WRONG_USE));
        Ok(status)
    }

    /// Since when it is stopped, as by SIGSTOP.
    pub(super) fn stopped(&self) -> Option<Instant> {
        self.stopped.filter(|_| !self.is_over)
    }

    /// Notes whether it was stopped or goes on. *Returns* the signal that has stopped it, once.
    pub(super) fn newly_stopped(&mut self) -> Option<i32> {
        let id = WaitId::Pid(Pid::from_child(&self.child));
        let asked = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        // Of one that has ended there is nothing to say.
        let status = waitid(id, asked).ok().flatten().filter(|_| !self.is_over)?;
        let by = status.stopping_signal();
        self.stopped = by.map(|_| Instant::now());
        by
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal; one that has ended is not there any more. Its number is its own until
    /// it is waited for, which `ended` alone does.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        if self.is_over {
            return;
        }
        // With whatever it has started.
        let _ = if signal == Signal::KILL {
            kill_process_group(pid, signal)
        } else {
            kill_process(pid, signal)
        };
    }
}

/// A process that ended otherwise than well.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed {
    pub(super) rank: usize,
    pub(super) status: ExitStatus,
}

impl Failed {
    /// Whether a new start may help: it was killed, or has lost another process.
    pub(super) fn may_help(&self) -> bool {
        self.has_lost_another() || self.status.signal().is_some()
    }

    /// Whether it has failed since another process had.
    pub(super) fn has_lost_another(&self) -> bool {
        self.status.code() == Some(RESTART_MAY_HELP)
    }

    /// Whether it has only ended, by itself, as this signal asked it to.
    pub(super) fn was_asked(&self, signal: i32) -> bool {
        self.status.code() == Some(BY_SIGNAL + signal)
    }

    /// The exit code that says so.
    pub(super) fn code(&self) -> u8 {
        let signal = || self.status.signal().map(|signal| BY_SIGNAL + signal);
        let code = self.status.code().or_else(signal);
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, status } = self;
        match (status.code(), status.signal()) {
            (Some(RESTART_MAY_HELP), _) => write!(
                f,
                "rank {rank} has lost another process (exit code {RESTART_MAY_HELP})"
            ),
            (Some(code), _) => write!(f, "rank {rank} failed (exit code {code})"),
            (None, Some(signal)) => write!(f, "rank {rank} was ended by signal {signal}"),
            (None, None) => write!(f, "rank {rank} failed"),
        }
    }
}

/// Where this process was started by `launch`: it is to end as by SIGTERM when the launcher is
/// killed, who can then tell it nothing.
///
/// # Errors
/// The launcher is gone already: it was killed while this process was loaded.
pub(crate) fn end_with_launcher() -> Result<(), Failure> {
    let launcher = std::env::var(LAUNCHED).ok();
    let launcher: Option<i32> = launcher.and_then(|number| number.parse().ok());
    // What such a process starts has these words, too, but is in the group of that process.
    let leads_group = getpgid(None).is_ok_and(|group| group == getpid());
    let Some(launcher) = launcher.filter(|_| leads_group) else {
        return Ok(());
    };
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    // From here on its end is told: it is asked for behind that.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) == Some(launcher) {
        return Ok(());
    }
    let code = BY_SIGNAL + Signal::TERM.as_raw();
    let why = format!("process {launcher}, the `launch` that started this one, is gone");
    Err(Failure::Exit(why, u8::try_from(code).unwrap_or(1)))
}
