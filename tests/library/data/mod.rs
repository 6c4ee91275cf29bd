//! The input pipeline: files to batches, in one order, exactly resumed.

mod cache;
#[cfg(feature = "parquet")]
mod columns;
mod compressed;
mod diagnosis;
mod every;
mod files;
mod fuzz;
mod how_many;
mod idx;
mod lines;
mod loader;
mod magic;
#[cfg(feature = "object-store")]
mod objects;
mod resume;
mod rows;
mod samples;
mod tars;
mod tf_record;
mod tokenizers;
mod tokens;
mod wrong_input;

use gpipe::data::{Batches, DataError, Source};
use gpipe::tch::Tensor;

/// The numbers of a batch.
fn numbers(batch: &Tensor) -> Vec<i64> {
    Vec::try_from(batch.reshape([-1])).unwrap()
}

/// All batches of numbers.
fn all<S: Source>(batches: Batches<S, Tensor>) -> Result<Vec<Vec<i64>>, DataError> {
    let loader = batches.load()?;
    loader.map(|batch| Ok(numbers(&batch?))).collect()
}

/// Checks that an error's text has all of these parts.
#[track_caller]
fn says(error: &DataError, parts: &[&str]) {
    let text = error.to_string();
    let missing: Vec<_> = parts.iter().filter(|part| !text.contains(**part)).collect();
    assert!(missing.is_empty(), "{missing:?} missing in: {text}");
}
