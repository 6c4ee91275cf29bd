//! What a run leaves behind: its configuration, metrics of every step, a trace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::metrics::{METRICS_FILE, RunMetrics, StepMetrics};

/// A folder that belongs to one run.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    metrics: RunMetrics,
}

impl RunFolder {
    /// Makes the folder and writes the configuration.
    pub(super) fn create(out: Option<&Path>, config: &str) -> Result<Self, Failure> {
        let path = match out {
            Some(path) => claim(path)?,
            None => next_free(Path::new("runs"))?,
        };
        write(&path.join("config.toml"), config.as_bytes())?;
        let metrics = RunMetrics::create(&path)?;
        Ok(Self { path, metrics })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what a step came to; it is in the files when this returns, so that a killed
    /// run has lost none.
    pub(super) fn step(&mut self, metrics: &StepMetrics) -> Result<(), Failure> {
        Ok(self.metrics.step(metrics)?)
    }

    /// Writes the timeline of a step, in Chrome's trace format.
    pub(super) fn trace(&self, trace: &str) -> Result<(), Failure> {
        write(&self.path.join("trace.json"), trace.as_bytes())
    }
}

/// The folder that was asked for, which must not hold another run.
fn claim(path: &Path) -> Result<PathBuf, Failure> {
    let wrong = |why: &str| Err(Failure::Usage(format!("--out {}: {why}", path.display())));
    if path.is_file() {
        return wrong("this is a file, not a folder");
    }
    if ["config.toml", METRICS_FILE]
        .iter()
        .any(|file| path.join(file).exists())
    {
        return wrong("the folder already holds a run; choose another, or remove it");
    }
    fs::create_dir_all(path)
        .map_err(|error| Failure::Usage(format!("--out {}: {error}", path.display())))?;
    Ok(path.to_owned())
}

/// `root/1`, or the next number that nobody has taken.
fn next_free(root: &Path) -> Result<PathBuf, Failure> {
    fs::create_dir_all(root).map_err(|error| cannot_write(root, &error))?;
    for number in 1_u32.. {
        let path = root.join(number.to_string());
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot_write(&path, &error)),
        }
    }
    Err(Failure::Usage(format!(
        "{} is full: choose a folder with --out",
        root.display()
    )))
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(anyhow::anyhow!("cannot write {}: {error}", path.display()))
}
