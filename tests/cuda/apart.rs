//! A part of this program in a process of its own: a device that fails, or an abort, ends
//! that one alone.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Set by whoever wants certain simulated devices.
pub(crate) const VARIABLE: &str = "GPIPE_SIMULATE_GPUS";

/// How such a process ended.
pub(crate) struct Ended {
    /// None where it was stopped.
    pub(crate) status: Option<ExitStatus>,
    /// What it printed.
    pub(crate) output: String,
}

/// What is told of a process at most.
const TOLD: usize = 8 << 10;

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// For one that did not come to its end: `signal: 6 (SIGABRT)`, and what it printed.
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

/// Runs this program with other arguments, for so long at most.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: &[A], limit: Duration) -> std::io::Result<Ended> {
    run_on(None, arguments, limit)
}

/// As [`run`], on simulated GPUs of these settings.
pub(crate) fn run_on<A: AsRef<OsStr>>(
    simulated: Option<&str>,
    arguments: &[A],
    limit: Duration,
) -> std::io::Result<Ended> {
    let variable = simulated.map(|settings| (VARIABLE, settings));
    run_with(variable.as_slice(), arguments, limit)
}

/// As [`run`], with these variables in the environment.
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
