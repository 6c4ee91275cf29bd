//! What a run leaves behind: its configuration, metrics of every step, a trace.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::Failure;
use super::checkpoints::{self, Checkpoints};
use crate::checkpoint::{Checkpoint, Checkpointer};
use crate::cli::say;
use crate::files;
use crate::metrics::{METRICS_FILE, MetricsError, RunMetrics, StepMetrics, is_event_file, read};

/// In a run folder.
pub(super) const CONFIG: &str = "config.toml";

/// A folder that belongs to one run.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    metrics: RunMetrics,
    /// Whether metrics wait for room on the disk.
    owes: bool,
}

impl RunFolder {
    /// Makes the folder of a new run, and locks it: the one that was asked for, which must
    /// not hold another run, or the next free one. Nothing else is written there before
    /// another process that wants the same folder is known to be shut out.
    pub(super) fn claim(out: Option<&Path>) -> Result<(PathBuf, Checkpointer), Failure> {
        let Some(path) = out else {
            let path = next_free(Path::new("runs"))?;
            let writer = Checkpoints::open(&path)?;
            return Ok((path, writer));
        };
        check_free(path)?;
        fs::create_dir_all(path)
            .map_err(|error| Failure::Usage(format!("--out {}: {error}", path.display())))?;
        let writer = Checkpoints::open(path)?;
        // Another one may have begun there, and ended, meanwhile.
        check_free(path)?;
        Ok((path.to_owned(), writer))
    }

    /// Writes the configuration into a folder that is claimed.
    pub(super) fn create(path: PathBuf, config: &str) -> Result<Self, Failure> {
        write_whole(&path.join(CONFIG), config.as_bytes())?;
        let metrics = RunMetrics::create(&path)?;
        Ok(Self::new(path, metrics))
    }

    /// Goes on with a folder after `step`: what came after it is cut off.
    pub(super) fn go_on(path: &Path, config: &str, step: u64) -> Result<Self, Failure> {
        write_whole(&path.join(CONFIG), config.as_bytes())?;
        let metrics = RunMetrics::resume(path, step)?;
        Ok(Self::new(path.to_owned(), metrics))
    }

    /// Has a folder that is claimed go on with what another run had come to after `step`.
    ///
    /// `save` makes its first checkpoint. Before that it is no run folder, and can be
    /// claimed again; after it all is there that a run goes on from: a process that is
    /// killed leaves nothing that would begin anew.
    pub(super) fn fork(
        path: PathBuf,
        from: &Path,
        config: &str,
        step: u64,
        save: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        copy_metrics(from, &path)?;
        let metrics = RunMetrics::resume(&path, step)?;
        metrics.sync()?;
        save()?;
        write_whole(&path.join(CONFIG), config.as_bytes())?;
        Ok(Self::new(path, metrics))
    }

    fn new(path: PathBuf, metrics: RunMetrics) -> Self {
        Self {
            path,
            metrics,
            owes: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The steps that the folder has.
    pub(super) fn records(&self) -> Result<Vec<StepMetrics>, MetricsError> {
        read(&self.path.join(METRICS_FILE))
    }

    /// Writes what a step came to; it is in the files when this returns, so that a killed
    /// run has lost none. Where there is no room it is written later, with a warning.
    pub(super) fn step(&mut self, metrics: &StepMetrics) {
        let written = self.metrics.step(metrics);
        let owed = std::mem::replace(&mut self.owes, written.is_err());
        match written {
            Err(error) if !owed => say(&format!(
                "warning: {error}; training goes on, and the metrics are written when they can be"
            )),
            _ => {}
        }
    }

    /// Has on the disk what was written, before a checkpoint says that it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn sync(&mut self) -> Result<(), Failure> {
        self.metrics.flush()?;
        Ok(self.metrics.sync()?)
    }

    /// Writes the timeline of a step, in Chrome's trace format.
    pub(super) fn trace(&self, trace: &str) -> Result<(), Failure> {
        write_whole(&self.path.join("trace.json"), trace.as_bytes())
    }
}

/// That a folder does not hold a run. One may have been stopped before it was one: then
/// there are neither a configuration nor checkpoints, and what else a fork has copied
/// stands beside the empty folder of them that it locked first.
pub(super) fn check_free(path: &Path) -> Result<(), Failure> {
    let wrong = |why: &str| Err(Failure::Usage(format!("--out {}: {why}", path.display())));
    if path.is_file() {
        return wrong("this is a file, not a folder");
    }
    let checkpoints = path.join(checkpoints::FOLDER);
    let is_there = |file| path.join(file).symlink_metadata().is_ok();
    let saved = Checkpoint::list(&checkpoints).map_or(true, |all| !all.is_empty());
    // No folder, or a link that leads nowhere, which is nothing to write through.
    let none = !checkpoints.exists();
    let strays = [METRICS_FILE, checkpoints::FOLDER].map(is_there);
    if is_there(CONFIG) || saved || (none && strays.contains(&true)) {
        return wrong(&format!(
            "the folder already holds a run; choose another, or remove it, or go on with it by \
             --resume {}",
            path.display()
        ));
    }
    Ok(())
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

/// The metrics of a run into the folder of another.
fn copy_metrics(from: &Path, to: &Path) -> Result<(), Failure> {
    let entries = fs::read_dir(from).map_err(|error| cannot_read(from, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| cannot_read(from, &error))?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        if name == METRICS_FILE || is_event_file(&path) {
            let copy = to.join(name);
            fs::copy(&path, &copy).map_err(|error| cannot_write(&copy, &error))?;
        }
    }
    Ok(())
}

/// Writes a file that was asked for by name, whatever stands there.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(|error| cannot_write(path, &error))
}

/// The whole file or, whatever happens, the one that was there. Links that others may have
/// left in the folder are replaced, not followed.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if files::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let new = path.with_extension("new");
    let removed = match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let created = removed.and_then(|()| fs::File::create_new(&new));
    let written = created.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let written = written.and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        // The room that it takes may be what is missing.
        let _ = fs::remove_file(&new);
        cannot_write(path, &error)
    })
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(anyhow::anyhow!("cannot write {}: {error}", path.display()))
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(anyhow::anyhow!("cannot read {}: {error}", path.display()))
}

/// What is said of steps up to `done` that have no line: a power cut may keep a checkpoint
/// and lose the lines of steps before it.
pub(super) fn missing(records: &[StepMetrics], done: u64) -> Option<String> {
    let mut gaps = Vec::new();
    let mut next = 1;
    let ends = records.iter().map(|record| record.step).chain([done + 1]);
    for step in ends.filter(|step| *step <= done + 1) {
        if step > next {
            gaps.push(match step - 1 - next {
                0 => format!("step {next}"),
                _ => format!("steps {next} to {}", step - 1),
            });
        }
        next = next.max(step + 1);
    }
    (!gaps.is_empty()).then(|| {
        format!(
            "warning: {METRICS_FILE} has no lines of {}; the checkpoint has the weights of all \
             {done} steps",
            gaps.join(", ")
        )
    })
}
