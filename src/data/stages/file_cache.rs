//! A cache of items in a file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::cache::{table, without_end};
use crate::tf_record::{TfRecordWriter, TfRecords, read_record};
use crate::{DataError, Place, Source, Store};
use gpipe_partitioner::files;

/// Items that are made once, in the first epoch, and cached in a file.
///
/// The file is a TFRecord file: the identity of the source, the items in the order in which they were
/// made, and their offsets. Until all items are there, it is called `NAME.partial` and is restarted by
/// the next run; then it is renamed, and later runs make no items at all.
#[derive(Debug)]
pub struct FileCache<S> {
    source: S,
    path: PathBuf,
    /// The file that items are read from.
    file: File,
    state: Mutex<State>,
    /// A lock per item, held while it is made, as another worker may request it at the same time.
    making: Box<[Mutex<()>]>,
}

#[derive(Debug)]
struct State {
    /// Offset of each item, 0 if not there yet.
    starts: Vec<u64>,
    /// `None` once all items are there.
    filling: Option<Filling>,
}

#[derive(Debug)]
struct Filling {
    writer: TfRecordWriter,
    partial: PathBuf,
    end: u64,
    missing: usize,
}

impl<S: Source> FileCache<S> {
    pub(crate) fn open(source: S, path: &Path) -> Result<Self, DataError> {
        // Before any file is created.
        let starts = table(source.len(), || 0).ok_or_else(|| without_end(&source))?;
        let making = table(source.len(), Mutex::default).ok_or_else(|| without_end(&source))?;
        let made = if path.exists() {
            whole(path, &source.identity(), source.len())
        } else {
            begun(path, &source.identity(), starts.into())
        };
        let (file, state) = made?;
        Ok(Self {
            source,
            path: path.to_owned(),
            file,
            state: Mutex::new(state),
            making,
        })
    }

    /// Reads the item whose record begins at `start`.
    fn read(&self, start: u64) -> Result<S::Item, DataError>
    where
        S::Item: Store,
    {
        let path = &self.path;
        let bytes = read_record(&self.file, path, start);
        let bytes = bytes.map_err(|error| with_advice(path, error))?;
        let mut rest = &bytes[..];
        let item = S::Item::take(&mut rest).and_then(|item| {
            let left = rest.len();
            anyhow::ensure!(left == 0, "{left} of its {} bytes are left", bytes.len());
            Ok(item)
        });
        item.map_err(|error| {
            let what = format!("the item here is of another kind than those to be made: {error}");
            bad(path, start, &what)
        })
    }

    /// Returns the offset of an item's record, if it is there.
    fn start(&self, index: usize) -> Result<Option<u64>, DataError> {
        let mut state = self.state.lock();
        let start = state.starts[index];
        if let Some(filling) = &mut state.filling
            && start != 0
        {
            // The record may still be in the writer's buffer.
            filling.writer.flush()?;
        }
        Ok((start != 0).then_some(start))
    }

    fn add(&self, index: usize, bytes: &[u8]) -> Result<(), DataError> {
        let mut state = self.state.lock();
        let State { starts, filling } = &mut *state;
        let Some(mut open) = filling.take_if(|_| starts[index] == 0) else {
            return Ok(());
        };
        let length = open.writer.write(bytes)?;
        starts[index] = open.end;
        open.end += length;
        open.missing -= 1;
        if open.missing > 0 {
            *filling = Some(open);
            return Ok(());
        }
        let table: Vec<u8> = starts
            .iter()
            .flat_map(|start| start.to_le_bytes())
            .collect();
        open.writer.write(&table)?;
        open.writer.finish()?;
        fs::rename(&open.partial, &self.path).map_err(|source| DataError::write(&self.path, source))
    }
}

/// Makes an error about the bytes from `offset` on, with advice.
fn bad(path: &Path, offset: u64, what: &str) -> DataError {
    let what = format!("{what}; delete the file, and it is made anew");
    DataError::bad(path, offset, what)
}

/// Adds advice to a read error if the cache's contents are invalid.
fn with_advice(path: &Path, error: DataError) -> DataError {
    match error {
        DataError::Bad {
            place: Place::File { offset, .. },
            what,
        } => bad(path, offset, &what),
        DataError::Settings(_) => bad(path, 0, "the file is empty"),
        other => other,
    }
}

/// Opens a complete cache of an earlier run.
fn whole(path: &Path, identity: &str, items: usize) -> Result<(File, State), DataError> {
    let bad = |what: &str| bad(path, 0, what);
    let advise = |error| with_advice(path, error);
    let records = TfRecords::open([path]).map_err(advise)?;
    let saved = records.get(0, 0).map_err(advise)?;
    if saved != identity.as_bytes() {
        let saved = String::from_utf8_lossy(&saved);
        let what = format!("this is a cache of other data: of {saved}, not of {identity}");
        return Err(bad(&what));
    }
    let table = records.get(0, records.len() - 1).map_err(advise)?;
    let starts: Vec<u64> = table
        .chunks_exact(8)
        .filter_map(|start| start.try_into().ok().map(u64::from_le_bytes))
        .collect();
    if starts.len() != items || records.len() != items + 2 {
        return Err(bad("this is no whole cache"));
    }
    let file = files::open(path).map_err(|source| DataError::read(path, source))?;
    let filling = None;
    Ok((file, State { starts, filling }))
}

/// Creates a new cache, replacing an incomplete one.
fn begun(path: &Path, identity: &str, starts: Vec<u64>) -> Result<(File, State), DataError> {
    let mut partial = OsString::from(path);
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let write = |source| DataError::write(&partial, source);
    let mut options = File::options();
    let options = options.create(true).write(true).truncate(false);
    let file = files::check_if_any(&partial).and_then(|()| options.open(&partial));
    let file = file.map_err(write)?;
    if file.try_lock().is_err() {
        let partial = partial.display();
        let what =
            format!("another process is filling {partial}: wait for it, or name another file");
        return Err(DataError::Settings(what));
    }
    file.set_len(0).map_err(write)?;
    let mut writer = TfRecordWriter::new(&partial, file);
    let end = writer.write(identity.as_bytes())?;
    let file = File::open(&partial).map_err(|source| DataError::read(&partial, source))?;
    let filling = Filling {
        writer,
        partial,
        end,
        missing: starts.len(),
    };
    let state = State {
        starts,
        filling: Some(filling),
    };
    Ok((file, state))
}

impl<S: Source<Item: Store>> Source for FileCache<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, _: u64, index: usize) -> Result<S::Item, DataError> {
        let failed = |source| DataError::Item {
            place: self.source.place(0, index),
            source,
        };
        if let Some(start) = self.start(index)? {
            return self.read(start);
        }
        let _making = self.making[index].lock();
        if let Some(start) = self.start(index)? {
            return self.read(start);
        }
        // Always from epoch 0: a resumed run must find the same items as the first one.
        let item = self.source.get(0, index)?;
        let mut bytes = Vec::new();
        item.put(&mut bytes).map_err(failed)?;
        self.add(index, &bytes)?;
        Ok(item)
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.source.place(0, index)
    }

    fn identity(&self) -> String {
        self.source.identity()
    }
}

impl<S> Drop for FileCache<S> {
    fn drop(&mut self) {
        if let Some(filling) = &self.state.get_mut().filling {
            // The incomplete file is useless; if it cannot be deleted, the next run overwrites it.
            let _ = fs::remove_file(&filling.partial);
        }
    }
}
