//! What a run leaves behind: its configuration, a line a step, a trace.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Failure;

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct StepRecord {
    /// From 1.
    pub(super) step: usize,
    /// As the model's loss function has it: for texts, nats per character.
    pub(super) loss: f64,
    pub(super) samples_per_s: f64,
    /// Where a sample is a sequence of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_s: Option<f64>,
    /// From having the batch to the end of the optimizer's update.
    pub(super) step_ms: f64,
    /// From the begin of the first action to the end of the last.
    pub(super) makespan_ms: f64,
    /// Idle share of device time.
    pub(super) bubble_measured: f64,
    pub(super) bubble_predicted: f64,
    /// Stages of each device.
    pub(super) chunks: usize,
    pub(super) recompute: String,
}

/// A folder that belongs to one run.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    metrics: BufWriter<File>,
}

impl RunFolder {
    /// Makes the folder and writes the configuration.
    pub(super) fn create(out: Option<&Path>, config: &str) -> Result<Self, Failure> {
        let path = match out {
            Some(path) => claim(path)?,
            None => next_free(Path::new("runs"))?,
        };
        write(&path.join("config.toml"), config.as_bytes())?;
        let metrics = path.join("metrics.jsonl");
        let file = File::create(&metrics).map_err(|error| cannot_write(&metrics, &error))?;
        Ok(Self {
            path,
            metrics: BufWriter::new(file),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a step's line; it is in the file when this returns, so that a
    /// killed run has lost none.
    pub(super) fn step(&mut self, record: &StepRecord) -> Result<(), Failure> {
        let line = serde_json::to_string(record)?;
        let written = writeln!(self.metrics, "{line}").and_then(|()| self.metrics.flush());
        written.map_err(|error| cannot_write(&self.path.join("metrics.jsonl"), &error))
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
    if ["config.toml", "metrics.jsonl"]
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
