//! The only door of the engine to locks, threads and their panics.
//!
//! The files of the protocol name no lock and no thread but these, so that a
//! test can compile the same files against those of a model checker.

use super::patience::Patience;

pub(super) use crate::panics::{caught, survived};
pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::thread::{Builder, JoinHandle};

/// Gives `guard` up, sleeps until `condvar` is notified, takes it again.
pub(super) fn wait<'a, T>(condvar: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(&mut guard);
    guard
}

/// How long a worker may stay awake while it waits.
pub(super) const PATIENCE: Patience = Patience::SOME;
