//! The engine's only access to locks, threads and their panics.
//!
//! The files of the protocol use only these locks and threads, so a test can compile the same files
//! against those of a model checker.

use super::spin::Spin;
use std::time::Duration;

pub(super) use super::panics::{caught, survived};
pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::thread::{Builder, JoinHandle};

/// Releases `guard`, sleeps until `condvar` is notified, and locks again.
pub(super) fn wait<'a, T>(condvar: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(&mut guard);
    guard
}

/// Releases `guard` and sleeps until `condvar` is notified, for `limit` at most.
pub(super) fn wait_at_most<T>(condvar: &Condvar, mut guard: MutexGuard<'_, T>, limit: Duration) {
    condvar.wait_for(&mut guard, limit);
}

/// How long a waiting worker may stay awake.
pub(super) const SPIN: Spin = Spin::BRIEF;
