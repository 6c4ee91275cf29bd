//! The model checker's locks and threads, in place of the engine's own.

use super::spin::Spin;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

pub(super) use shuttle::sync::atomic::AtomicBool;
pub(super) use shuttle::sync::{Condvar, MutexGuard};
pub(super) use shuttle::thread::{Builder, JoinHandle};

pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Time does not pass here: any limit may expire at any moment.
pub(super) fn wait_at_most<T>(_: &Condvar, guard: MutexGuard<'_, T>, _: Duration) {
    drop(guard);
    shuttle::thread::yield_now();
}

/// The checker runs all threads on one, where a thread-local variable would be shared by all.
pub(super) fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        text.unwrap_or("(no message)").to_owned()
    })
}

pub(super) fn survived(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

/// No spinning: time does not pass here.
pub(super) const SPIN: Spin = Spin::NONE;
