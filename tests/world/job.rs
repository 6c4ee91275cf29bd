//! Processes of this program that each run a part, and their ends.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The part that a process runs.
pub(crate) const PART: &str = "WORLD_TEST_PART";

/// Longer than any test takes.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// A process that was started.
pub(crate) struct Process {
    child: Child,
    output: File,
    ended: Option<(ExitStatus, SystemTime)>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let output = tempfile::tempfile().unwrap();
        let child = command
            .stdout(output.try_clone().unwrap())
            .stderr(output.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            output,
            ended: None,
        }
    }

    /// Its output so far.
    pub(crate) fn printed(&self) -> String {
        // The file position is shared with the process, so the file is opened again.
        let path = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&self.output)
        );
        let mut file = File::open(path).unwrap();
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Kills it, and returns the time.
    pub(crate) fn kill(&mut self) -> SystemTime {
        let now = SystemTime::now();
        self.child.kill().unwrap();
        now
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    fn look(&mut self) {
        if self.ended.is_none()
            && let Some(status) = self.child.try_wait().unwrap()
        {
            self.ended = Some((status, SystemTime::now()));
        }
    }

    /// Waits until it has printed this text.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.printed().contains(text) {
            self.look();
            assert!(self.ended.is_none(), "no `{text}`: {}", self.printed());
            assert!(begin.elapsed() < LIMIT, "no `{text}`: {}", self.printed());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(&mut self) -> Ended {
        let begin = Instant::now();
        loop {
            self.look();
            if let Some((status, at)) = self.ended {
                return Ended {
                    status,
                    at,
                    printed: self.printed(),
                };
            }
            assert!(
                begin.elapsed() < LIMIT,
                "it does not end: {}",
                self.printed()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a process has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) at: SystemTime,
    pub(crate) printed: String,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// When it learned of the loss.
    #[track_caller]
    pub(crate) fn heard(&self) -> SystemTime {
        let nanos = self
            .printed
            .lines()
            .find_map(|line| line.strip_prefix("heard at "));
        let nanos = nanos.and_then(|nanos| nanos.parse().ok());
        SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos.unwrap())
    }

    /// The rank that it reports as lost: the text after `lost:` in its own line.
    #[track_caller]
    pub(crate) fn lost(&self) -> &str {
        let line = self
            .printed
            .lines()
            .find_map(|line| line.strip_prefix("lost: "));
        line.unwrap_or_else(|| panic!("nobody lost: {}", self.printed))
    }
}

/// This program as one rank that runs a part.
pub(crate) fn part(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "parts::part", "--nocapture"])
        .env(PART, name);
    command
}

/// Likewise, started by another command.
fn within(by: &[&str], name: &str) -> Command {
    let own = part(name);
    let mut command = Command::new(by[0]);
    command
        .args(&by[1..])
        .arg(own.get_program())
        .args(own.get_args())
        .env(PART, name);
    command
}

/// The processes of one run.
pub(crate) struct Job {
    pub(crate) ranks: Vec<Process>,
    /// A job's processes fill a small machine: one job at a time.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Job {
    /// Starts a part as each of `size` ranks.
    pub(crate) fn start(name: &str, size: usize, variables: &[(&str, &str)]) -> Self {
        Self::start_by(size, "127.0.0.1", variables, |_| part(name))
    }

    /// Likewise in network namespaces, where the first rank has this address.
    pub(crate) fn start_in<'a>(
        name: &str,
        size: usize,
        (namespace, master): (&dyn Fn(usize) -> &'a str, &str),
        variables: &[(&str, &str)],
    ) -> Self {
        Self::start_by(size, master, variables, |rank| {
            within(&["ip", "netns", "exec", namespace(rank)], name)
        })
    }

    /// Likewise, each started by another command.
    pub(crate) fn start_within(by: &[&str], name: &str, size: usize) -> Self {
        Self::start_by(size, "127.0.0.1", &[], |_| within(by, name))
    }

    fn start_by(
        size: usize,
        master: &str,
        variables: &[(&str, &str)],
        command: impl Fn(usize) -> Command,
    ) -> Self {
        // A failed test leaves no state behind.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port().to_string();
        let start = |rank: usize| {
            let mut command = command(rank);
            command
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("WORLD_SIZE", size.to_string())
                .env("MASTER_ADDR", master)
                .env("MASTER_PORT", &port)
                .envs(variables.iter().copied());
            Process::start(&mut command)
        };
        Self {
            ranks: (0..size).map(start).collect(),
            _alone: alone,
        }
    }

    /// Waits until all ranks have printed this text.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        for rank in &mut self.ranks {
            rank.wait_for(text);
        }
    }

    /// Waits for the ends of all ranks but this one.
    #[track_caller]
    pub(crate) fn others(&mut self, than: usize) -> Vec<Ended> {
        let others = self.ranks.iter_mut().enumerate();
        let others = others.filter(|(rank, _)| *rank != than);
        others.map(|(_, process)| process.finish()).collect()
    }

    /// Waits for the ends of all ranks.
    #[track_caller]
    pub(crate) fn all(&mut self) -> Vec<Ended> {
        self.others(usize::MAX)
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}
