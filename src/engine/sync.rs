//! The only door of the engine to locks, threads and their panics.
//!
//! The files of the protocol name no lock and no thread but these, so that a
//! test can compile the same files against those of a model checker.

use super::spin::Spin;
use std::time::Duration;

pub(super) use super::panics::{caught, survived};
pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::thread::{Builder, JoinHandle};

/// Gives `guard` up, sleeps until `condvar` is notified, takes it again.
pub(super) fn wait<'a, T>(condvar: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(&mut guard);
    guard
}

/// Gives `guard` up and sleeps until `condvar` is notified, for `limit` at most.
pub(super) fn wait_at_most<T>(condvar: &Condvar, mut guard: MutexGuard<'_, T>, limit: Duration) {
    condvar.wait_for(&mut guard, limit);
}

/// How long a worker may stay awake while it waits.
pub(super) const SPIN: Spin = Spin::BRIEF;
