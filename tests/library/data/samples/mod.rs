//! Samples in user files: every kind is read as written, split and scaled the same way each time, and refused
//! by name if damaged.

mod forged;
mod gaps;
mod images;
mod kinds;
mod numpy;
mod rounding;
mod splits;
mod table;
mod times;
mod trained;

pub(super) use forged::changed;
pub(super) use images::pictures;
pub(super) use numpy::{f32s, npy, npz};

use std::path::Path;

use gpipe::data::{DataError, SampleOptions, Samples};
use gpipe::tch::Tensor;

/// All samples in order, as one batch.
fn all(samples: &Samples) -> (Tensor, Tensor) {
    let mut batches = samples.in_order(samples.len()).load().unwrap();
    batches.next().unwrap().unwrap()
}

fn open(path: &Path) -> Result<Samples, DataError> {
    Samples::open(path, &SampleOptions::default())
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(gpipe::tch::Kind::Double).reshape([-1])).unwrap()
}

/// Checks that the error has all of these parts.
#[track_caller]
fn refused(path: &Path, options: &SampleOptions, wanted: &[&str]) {
    let error = Samples::open(path, options)
        .expect_err("it was opened")
        .to_string();
    for part in wanted {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}
