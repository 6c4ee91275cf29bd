//! Runs a part of this program in a separate process, so that a failing device or an abort ends only that
//! process.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Variable that requests simulated devices with the given settings.
pub(crate) const VARIABLE: &str = "GPIPE_SIMULATE_GPUS";

/// How a process ended.
pub(crate) struct Ended {
    /// `None` if it was stopped.
    pub(crate) status: Option<ExitStatus>,
    /// Its output.
    pub(crate) output: String,
}

/// Longest part of a process's output that is reported, in bytes.
const TOLD: usize = 8 << 10;

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// For a process that failed: `signal: 6 (SIGABRT)`, and its output.
    pub(crate) fn why(&self) -> String {
        let how = match self.status {
            Some(status) => status.to_string(),
            None => "stopped: it took too long".to_owned(),
        };
        let last = self
            .output
            .floor_char_boundary(self.output.len().saturating_sub(TOLD));
        format!("{how}\n{}", &self.output[last..])
    }
}

/// Runs this program with other arguments, for at most `limit`.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: &[A], limit: Duration) -> std::io::Result<Ended> {
    run_on(None, arguments, limit)
}

/// Like [`run`], on simulated GPUs with these settings.
pub(crate) fn run_on<A: AsRef<OsStr>>(
    simulated: Option<&str>,
    arguments: &[A],
    limit: Duration,
) -> std::io::Result<Ended> {
    let variable = simulated.map(|settings| (VARIABLE, settings));
    run_with(variable.as_slice(), arguments, limit)
}

/// Like [`run`], with these environment variables.
pub(crate) fn run_with<A: AsRef<OsStr>>(
    variables: &[(&str, &str)],
    arguments: &[A],
    limit: Duration,
) -> std::io::Result<Ended> {
    let mut file = tempfile::tempfile()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .envs(variables.iter().copied())
        .stdout(file.try_clone()?)
        .stderr(file.try_clone()?)
        .spawn()?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut output = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut output)?;
    Ok(Ended {
        status,
        output: String::from_utf8_lossy(&output).into_owned(),
    })
}
