//! Memory of tensors: counted, limited, released.
//!
//! The counts cover the whole process: a test that creates tensors holds the guard of [`alone`] while it
//! runs.
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

/// Tensors from before counting began, and the lock that makes a test the only one to create tensors.
fn alone() -> MutexGuard<'static, Option<Vec<Tensor>>> {
    static EARLY: Mutex<Option<Vec<Tensor>>> = Mutex::new(None);
    // A failed test leaves no state that others need.
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
