//! Starting threads on systems that may refuse them.

use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use parking_lot::Mutex;

/// Starts a thread of a scope.
///
/// # Errors
/// The system gives none.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(test)]
    tests::ask()?;
    Builder::new().spawn_scoped(scope, body)
}

/// Returns the result of `job` for each item, in order, computed on at most `most` threads,
/// including the calling one. If the system refuses a thread, there is one fewer.
pub fn side_by_side<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T> + Send,
    most: usize,
    job: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let threads = most.min(items.len());
    let items = Mutex::new(items.enumerate());
    let work = || {
        let next = || items.lock().next();
        let mine = std::iter::from_fn(next).map(|(number, item)| (number, job(item)));
        mine.collect::<Vec<_>>()
    };
    let mut all = std::thread::scope(|scope| {
        let others = (1..threads).map_while(|_| spawn(scope, work).ok());
        let others: Vec<_> = others.collect();
        let mut all = work();
        for other in others {
            match other.join() {
                Ok(some) => all.extend(some),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    thread_local! {
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Makes the system grant the calling thread only `left` more threads while `body` runs.
    pub(crate) fn with_threads<R>(left: usize, body: impl FnOnce() -> R) -> R {
        LEFT.set(left);
        let result = body();
        LEFT.set(usize::MAX);
        result
    }

    pub(super) fn ask() -> io::Result<()> {
        let left = LEFT.get().checked_sub(1);
        LEFT.set(left.ok_or(io::ErrorKind::WouldBlock)?);
        Ok(())
    }

    #[test]
    fn results_are_in_order_whatever_threads_there_are() {
        let wanted: Vec<usize> = (0..40).map(|number| number * number).collect();
        for (given, most) in [(0, 8), (1, 8), (5, 8), (usize::MAX, 8), (usize::MAX, 1)] {
            let made = with_threads(given, || {
                side_by_side(0..40_usize, most, |number| number * number)
            });
            assert_eq!(made, wanted, "{given} threads given");
        }
        assert!(side_by_side(0..0_usize, 8, |number| number).is_empty());
    }

    /// A file that announces twenty thousand parts had as many threads started.
    #[test]
    fn no_more_threads_are_started_than_may_be() {
        let threads = side_by_side(0..20_000_usize, 4, |_| thread::current().id());
        assert_eq!(threads.len(), 20_000);
        let threads: HashSet<_> = threads.into_iter().collect();
        assert!(threads.len() <= 4, "{threads:?}");
    }
}
