//! A limited set of open files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// Limit of open files: a data set may have more shards than a process may open.
const OPEN: usize = 64;

/// Files by number; the last used ones stay open.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl Files {
    pub(super) fn get(&self, number: usize, path: &Path) -> io::Result<Arc<File>> {
        if let Some(file) = self.take(number) {
            return Ok(self.put(number, file));
        }
        // Without the lock, so that other threads can continue reading.
        let file = Arc::new(gpipe_partitioner::files::open(path)?);
        Ok(self.put(number, file))
    }

    fn take(&self, number: usize) -> Option<Arc<File>> {
        let mut open = self.open.lock();
        let place = open.iter().position(|(other, _)| *other == number)?;
        open.remove(place).map(|(_, file)| file)
    }

    fn put(&self, number: usize, file: Arc<File>) -> Arc<File> {
        let mut open = self.open.lock();
        open.truncate(OPEN - 1);
        open.push_front((number, Arc::clone(&file)));
        file
    }
}
