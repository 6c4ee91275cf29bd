//! Rows that are decoded together: a row group of a Parquet file, a record batch of an Arrow file.

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::idx::{DENSE, LARGE};

/// Rows of a batch of a unit.
pub(super) const ROWS: usize = 1 << 10;

/// A unit, decoded.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// Of [`Unit::each`] rows, but for the last one.
    pub(super) batches: Arc<[Arc<RecordBatch>]>,
    pub(super) each: usize,
    /// Bytes of memory, about.
    pub(super) bytes: u64,
}

impl Unit {
    /// The batch with a row, and the row's number in it.
    pub(super) fn row(&self, row: usize) -> (Arc<RecordBatch>, usize) {
        let each = self.each.max(1);
        (Arc::clone(&self.batches[row / each]), row % each)
    }

    pub(super) fn rows(&self) -> usize {
        self.batches.iter().map(|batch| batch.num_rows()).sum()
    }
}

/// What is wrong with a unit that could not be decoded. The readers of these formats panic on some
/// that are damaged, which says nothing to whoever has the file.
pub(super) fn damage(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    match text.strip_prefix("panicked: ") {
        Some(why) => format!("its parts do not go together ({why})"),
        None => text,
    }
}

/// That what is compressed in so many bytes becomes no more than anybody expects.
///
/// # Errors
/// It becomes more, in words.
pub(super) fn refuse_dense(there: u64, becomes: u64) -> Result<(), String> {
    if becomes <= LARGE || becomes / DENSE <= there {
        return Ok(());
    }
    Err(format!(
        "it has {there} bytes and says that it becomes {becomes}, more than {DENSE} times as many: write \
         it without compression, or with fewer rows in a group, if it is to"
    ))
}
