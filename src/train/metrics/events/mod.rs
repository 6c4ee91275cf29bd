//! TensorBoard's event files: protocol buffers in TFRecord frames.

mod message;

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::MetricsError;
use gpipe_data::tf_record::frame::{self, First, first};
use gpipe_partitioner::files;
use message::What;

/// Prefix of event files' names, followed by seconds since 1970, which order the files in TensorBoard.
const PREFIX: &str = "events.out.tfevents.";

/// Writes scalars for TensorBoard.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
    /// Size of all complete records.
    whole: u64,
}

impl EventFile {
    /// Creates a file in a folder, which TensorBoard reads after the existing ones.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn create(folder: &Path) -> Result<Self, MetricsError> {
        let now = now();
        let newest = existing(folder)?.last().and_then(|path| seconds_of(path));
        let seconds = newest.map_or(now as u64, |newest| (now as u64).max(newest + 1));
        let process = std::process::id();
        let path = folder.join(format!("{PREFIX}{seconds:010}.{process}.gpipe-rs"));
        let mut options = OpenOptions::new();
        let file = options.create_new(true).append(true).open(&path);
        let mut events = Self {
            file: file.map_err(MetricsError::io("make", &path))?,
            path,
            whole: 0,
        };
        events.write(&message::event(now, 0, &What::Version))?;
        Ok(events)
    }

    /// Continues after `step` in a new file: later events and incomplete records are cut off the
    /// existing files, and TensorBoard instances that have already read them are told to discard them.
    ///
    /// # Errors
    /// [`MetricsError::Record`] for a damaged record.
    pub fn resume(folder: &Path, step: u64) -> Result<Self, MetricsError> {
        for path in existing(folder)? {
            cut_after(&path, step)?;
        }
        let mut events = Self::create(folder)?;
        events.write(&message::event(now(), step + 1, &What::Start))?;
        Ok(events)
    }

    /// Appends named scalars of a step; they are in the file when this returns.
    ///
    /// # Errors
    /// [`MetricsError::Io`]; then none is in the file.
    pub fn scalars(&mut self, step: u64, values: &[(String, f64)]) -> Result<(), MetricsError> {
        self.write(&message::event(now(), step, &What::Scalars(values)))
    }

    /// Syncs the file to the disk.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn sync(&self) -> Result<(), MetricsError> {
        let synced = self.file.sync_data();
        synced.map_err(MetricsError::io("write", &self.path))
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, event: &[u8]) -> Result<(), MetricsError> {
        let record = frame::record(event);
        if let Err(error) = self.file.write_all(&record) {
            // A partial record would hide all that follow. The first error is the relevant one.
            let _ = self.file.set_len(self.whole);
            return Err(MetricsError::io("write", &self.path)(error));
        }
        self.whole += record.len() as u64;
        Ok(())
    }
}

/// Whether this is the name of an event file.
pub(crate) fn is_event_file(path: &Path) -> bool {
    seconds_of(path).is_some()
}

/// Returns the event files of a folder, in the order in which TensorBoard reads them.
fn existing(folder: &Path) -> Result<Vec<PathBuf>, MetricsError> {
    let entries = fs::read_dir(folder).map_err(MetricsError::io("read", folder))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(MetricsError::io("read", folder))?.path();
        if seconds_of(&path).is_some() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn seconds_of(path: &Path) -> Option<u64> {
    let rest = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    rest.split('.').next()?.parse().ok()
}

/// Returns the seconds since 1970, or 0 if the clock is before.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Cuts off the records from the first one of a step after `last`, and an incomplete one; removes a
/// file that has no scalars then.
fn cut_after(path: &Path, last: u64) -> Result<(), MetricsError> {
    let bytes = files::read(path).map_err(MetricsError::io("read", path))?;
    let damaged = |offset: usize, why| MetricsError::Record {
        path: path.to_owned(),
        offset: offset as u64,
        why,
    };
    let (mut kept, mut any) = (0, false);
    while let Some(rest) = bytes.get(kept..).filter(|rest| !rest.is_empty()) {
        let (data, length) = match first(rest) {
            First::Whole(data, length) => (data, length),
            First::Torn => break,
            First::Damaged(why) => return Err(damaged(kept, why)),
        };
        let event = message::step(data);
        let (step, scalars) = event.ok_or_else(|| damaged(kept, "it is no event"))?;
        if step > last {
            break;
        }
        any |= scalars;
        kept += length;
    }
    if !any {
        return fs::remove_file(path).map_err(MetricsError::io("remove", path));
    }
    if kept == bytes.len() {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(path);
    let cut = file.and_then(|file| file.set_len(kept as u64));
    cut.map_err(MetricsError::io("cut", path))
}
