//! The child processes, and the environment variables of each.

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

/// Environment variable with the launcher's process id.
const LAUNCHED: &str = "GPIPE_LAUNCHED_BY";

/// Exit code of a process that lost another one: a restart may help (`EX_TEMPFAIL`).
const RESTART_MAY_HELP: i32 = 75;

/// Exit code of a process with a wrong command line or wrong data.
const WRONG_USE: i32 = 2;

/// Processes to start.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) program: PathBuf,
    pub(super) verb: Vec<OsString>,
    /// Processes on this host.
    pub(super) processes: usize,
    /// Rank of the first of them.
    pub(super) first: usize,
    /// Processes on all hosts.
    pub(super) size: usize,
    pub(super) master: Address,
    pub(super) restarts: usize,
    pub(super) max_restarts: usize,
}

impl Plan {
    /// Starts one process, in its own process group: a terminal's Ctrl-C then reaches only the
    /// launcher, which passes it on, once.
    pub(super) fn start(&self, local_rank: usize, output: &Forwarding) -> io::Result<Running> {
        let rank = self.first + local_rank;
        let mut command = Command::new(&self.program);
        // The typed name, for messages to repeat: under pip, this binary itself would not start.
        let called = std::env::args_os().next();
        command
            .arg0(called.unwrap_or_else(|| self.program.clone().into_os_string()))
            .args(&self.verb)
            .envs(self.words(local_rank))
            .env_remove("TORCHELASTIC_USE_AGENT_STORE")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        // Rank 0 writes its data to standard output unchanged, as without a launcher.
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
    /// Time since which the process is stopped, as by SIGSTOP.
    stopped: Option<Instant>,
}

impl Running {
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the process ended because of wrong use.
    pub(super) fn is_wrong_use(&self) -> bool {
        self.is_wrong_use
    }

    /// Returns the exit status, once.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.is_over {
            return Ok(None);
        }
        let status = self.child.try_wait()?;
        self.is_over = status.is_some();
        self.is_wrong_use = status.is_some_and(|status| status.code() == Some(WRONG_USE));
        Ok(status)
    }

    /// Returns since when the process is stopped, as by SIGSTOP.
    pub(super) fn stopped(&self) -> Option<Instant> {
        self.stopped.filter(|_| !self.is_over)
    }

    /// Notes a stop or continuation of the process. *Returns* the signal that stopped it, once.
    pub(super) fn newly_stopped(&mut self) -> Option<i32> {
        let id = WaitId::Pid(Pid::from_child(&self.child));
        let asked = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        // A process that has ended is not reported.
        let status = waitid(id, asked).ok().flatten().filter(|_| !self.is_over)?;
        let by = status.stopping_signal();
        self.stopped = by.map(|_| Instant::now());
        by
    }

    /// Process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process, unless it has ended. The id cannot be reused before the process
    /// is waited for, which only `ended` does.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        if self.is_over {
            return;
        }
        // The group includes the descendants of the process.
        let _ = if signal == Signal::KILL {
            kill_process_group(pid, signal)
        } else {
            kill_process(pid, signal)
        };
    }
}

/// A process that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed {
    pub(super) rank: usize,
    pub(super) status: ExitStatus,
}

impl Failed {
    /// Whether a restart may help: the process was killed, or lost another one.
    pub(super) fn may_help(&self) -> bool {
        self.has_lost_another() || self.status.signal().is_some()
    }

    /// Whether the process failed because another one had.
    pub(super) fn has_lost_another(&self) -> bool {
        self.status.code() == Some(RESTART_MAY_HELP)
    }

    /// Whether the process merely ended by itself, as this signal asked.
    pub(super) fn was_asked(&self, signal: i32) -> bool {
        self.status.code() == Some(BY_SIGNAL + signal)
    }

    /// Exit code to report for this failure.
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

/// Makes this process, if `launch` started it, end as by SIGTERM when the launcher is killed and so
/// cannot tell it.
///
/// # Errors
/// The launcher is already gone: it was killed while this process was loading.
pub(crate) fn end_with_launcher() -> Result<(), Failure> {
    let launcher = std::env::var(LAUNCHED).ok();
    let launcher: Option<i32> = launcher.and_then(|number| number.parse().ok());
    // Descendants inherit the variable, too, but do not lead a process group.
    let leads_group = getpgid(None).is_ok_and(|group| group == getpid());
    let Some(launcher) = launcher.filter(|_| leads_group) else {
        return Ok(());
    };
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    // The launcher's death is signalled from here on, so ask only now whether it still lives.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) == Some(launcher) {
        return Ok(());
    }
    let code = BY_SIGNAL + Signal::TERM.as_raw();
    let why = format!("process {launcher}, the `launch` that started this one, is gone");
    Err(Failure::Exit(why, u8::try_from(code).unwrap_or(1)))
}
