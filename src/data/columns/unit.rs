//! Units of decoding: a row group of a Parquet file, or a record batch of an Arrow file.

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::idx::{DENSE, LARGE};

/// Rows per batch of a unit.
pub(super) const ROWS: usize = 1 << 10;

/// A decoded unit.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// Batches of [`Unit::each`] rows, except the last.
    pub(super) batches: Arc<[Arc<RecordBatch>]>,
    pub(super) each: usize,
    /// Approximate size in memory.
    pub(super) bytes: u64,
}

impl Unit {
    /// Returns the batch with a row, and the row's index in it.
    pub(super) fn row(&self, row: usize) -> (Arc<RecordBatch>, usize) {
        let each = self.each.max(1);
        (Arc::clone(&self.batches[row / each]), row % each)
    }

    pub(super) fn rows(&self) -> usize {
        self.batches.iter().map(|batch| batch.num_rows()).sum()
    }
}

/// Explains why a unit could not be decoded. The formats' readers panic on some damaged files, with
/// messages that mean nothing to users.
pub(super) fn damage(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    match text.strip_prefix("panicked: ") {
        Some(why) => format!("its parts do not go together ({why})"),
        None => text,
    }
}

/// Rejects data that decompresses to far more bytes than plausible.
///
/// # Errors
/// The data decompresses to more.
pub(super) fn refuse_dense(there: u64, becomes: u64) -> Result<(), String> {
    if becomes <= LARGE || becomes / DENSE <= there {
        return Ok(());
    }
    Err(format!(
        "it has {there} bytes and says that it becomes {becomes}, more than {DENSE} times as many: write \
         it without compression, or with fewer rows in a group, if it is to"
    ))
}
