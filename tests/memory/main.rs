//! What tensors take: counted, limited, given back.
//!
//! The counts are those of a whole process: a test that makes tensors holds what [`alone`]
//! gives for as long as it runs.
#![allow(clippy::unwrap_used)]

mod counted;
mod full;
mod leaks;
mod low;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard};

use gpipe::memory;
use gpipe::tch::{Device, Kind, Tensor};

/// Tensors from before anything counted, and the word to be the only test that
/// makes any.
fn alone() -> MutexGuard<'static, Option<Vec<Tensor>>> {
    static EARLY: Mutex<Option<Vec<Tensor>>> = Mutex::new(None);
    // A test that failed has left nothing that the others need.
    let mut early = EARLY.lock().unwrap_or_else(|failed| failed.into_inner());
    early.get_or_insert_with(|| {
        let sizes = [0, 1, 1 << 10, 1 << 20];
        sizes
            .map(|size| Tensor::ones([size], (Kind::Float, Device::Cpu)))
            .into()
    });
    memory::install().unwrap();
    early
}
