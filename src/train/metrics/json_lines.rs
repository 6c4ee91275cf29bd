//! Metrics as JSON lines, one object per step.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::{MetricsError, StepMetrics};
use gpipe_partitioner::files;

/// Appends steps to a file of JSON lines.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
    /// Size of all complete lines.
    whole: u64,
    /// Size of the last of them.
    last: u64,
}

impl JsonLines {
    /// Creates a file, replacing an existing one.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn create(path: &Path) -> Result<Self, MetricsError> {
        let lines = Self::open(path)?;
        lines.cut()?;
        Ok(lines)
    }

    /// Continues a file after `step`: later lines and an incomplete last one are cut off. Creates the
    /// file if missing.
    ///
    /// # Errors
    /// [`MetricsError::Line`] if an earlier line is not a step's: nothing is cut.
    pub fn resume(path: &Path, step: u64) -> Result<Self, MetricsError> {
        let mut lines = Self::open(path)?;
        let mut text = Vec::new();
        let read = lines.file.read_to_end(&mut text);
        read.map_err(MetricsError::io("read", path))?;
        for (number, line) in whole_lines(&text).enumerate() {
            let own: StepMetrics = parse(path, number + 1, line)?;
            if own.step > step {
                break;
            }
            lines.last = line.len() as u64;
            lines.whole += lines.last;
        }
        lines.cut()?;
        Ok(lines)
    }

    fn open(path: &Path) -> Result<Self, MetricsError> {
        let mut options = OpenOptions::new();
        let options = options.create(true).read(true).append(true);
        let file = files::check_if_any(path).and_then(|()| options.open(path));
        Ok(Self {
            path: path.to_owned(),
            file: file.map_err(MetricsError::io("write", path))?,
            whole: 0,
            last: 0,
        })
    }

    fn cut(&self) -> Result<(), MetricsError> {
        let cut = self.file.set_len(self.whole);
        cut.map_err(MetricsError::io("cut", &self.path))
    }

    /// Appends a step. Its line is in the file when this returns, so that a killed process loses none;
    /// on failure, none of it is.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn step(&mut self, step: &StepMetrics) -> Result<(), MetricsError> {
        let json = serde_json::to_vec(step).map_err(std::io::Error::from);
        let written = json.and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(length) => {
                self.whole += length;
                self.last = length;
                Ok(())
            }
            Err(error) => {
                // Half a line would spoil the next one. The first error is the relevant one.
                let _ = self.cut();
                Err(MetricsError::io("write", &self.path)(error))
            }
        }
    }

    /// Replaces the last step, of which more is known now.
    ///
    /// # Errors
    /// [`MetricsError::Io`]; the last one is then lost.
    pub fn amend(&mut self, step: &StepMetrics) -> Result<(), MetricsError> {
        self.whole -= std::mem::take(&mut self.last);
        self.cut()?;
        self.step(step)
    }

    /// Syncs the file to the disk, so that it survives a power failure.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn sync(&self) -> Result<(), MetricsError> {
        let synced = self.file.sync_data();
        synced.map_err(MetricsError::io("write", &self.path))
    }
}

/// Reads the steps of a file of JSON lines; an incomplete last line, as of a run in progress, is
/// ignored.
///
/// # Errors
/// [`MetricsError::Io`]; [`MetricsError::Line`] for a line that is not a step's.
pub fn read(path: &Path) -> Result<Vec<StepMetrics>, MetricsError> {
    let text = files::read(path).map_err(MetricsError::io("read", path))?;
    let lines = whole_lines(&text).enumerate();
    lines
        .map(|(number, line)| parse(path, number + 1, line))
        .collect()
}

fn whole_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| line.ends_with(b"\n"))
}

fn parse(path: &Path, line: usize, text: &[u8]) -> Result<StepMetrics, MetricsError> {
    let wrong = |why: String| MetricsError::Line {
        path: path.to_owned(),
        line,
        why,
    };
    let step: StepMetrics =
        serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
    if step.step == 0 {
        return Err(wrong("it has no `step` from 1".to_owned()));
    }
    Ok(step)
}
