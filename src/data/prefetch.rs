//! Making the next batches while the current one is trained on.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

/// Items made ahead of their use, on a thread of their own, in their order.
///
/// The thread ends with its source, or when the value is dropped: it is then at
/// most making one more item.
#[derive(Debug)]
pub struct Prefetch<T> {
    /// `None` only while dropping: the thread notices that nobody listens.
    items: Option<Receiver<T>>,
    worker: Option<JoinHandle<()>>,
    waited: Duration,
}

impl<T> Prefetch<T> {
    /// How long its reader has waited for items since the last call of this.
    pub fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

impl<T: Send + 'static> Prefetch<T> {
    /// Makes at most `depth` items ahead, until `source` has no more.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn new(
        depth: usize,
        source: impl IntoIterator<Item = T> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (send, items) = bounded(depth);
        let make = move || {
            for item in source {
                if send.send(item).is_err() {
                    break;
                }
            }
        };
        let worker = thread::Builder::new()
            .name("prefetch".to_owned())
            .spawn(make)?;
        Ok(Self {
            items: Some(items),
            worker: Some(worker),
            waited: Duration::ZERO,
        })
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = T;

    /// The next item, waiting for it if need be.
    ///
    /// # Panics
    /// With the source's own panic.
    fn next(&mut self) -> Option<T> {
        let start = Instant::now();
        let item = self.items.as_ref()?.recv().ok();
        self.waited += start.elapsed();
        if item.is_none()
            && let Some(worker) = self.worker.take()
            && let Err(panic) = worker.join()
        {
            resume_unwind(panic);
        }
        item
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.items = None;
        if let Some(worker) = self.worker.take() {
            // Its panic, if any, belongs to an item that nobody asked for.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn items_come_in_order_and_the_thread_ends_with_the_source() {
        let items: Vec<u32> = Prefetch::new(2, 0..100).unwrap().collect();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn dropping_it_early_ends_the_thread() {
        let alive = Arc::new(());
        let inner = Arc::clone(&alive);
        let endless = std::iter::repeat_with(move || Arc::clone(&inner));
        let mut items = Prefetch::new(2, endless).unwrap();
        assert!(items.next().is_some());
        drop(items);
        assert_eq!(
            Arc::strong_count(&alive),
            1,
            "the source and its items are gone"
        );
    }

    #[test]
    fn a_panic_of_the_source_reaches_the_reader() {
        let source = (0..3).map(|number| {
            if number < 2 {
                number
            } else {
                panic!("no third")
            }
        });
        let mut items = Prefetch::new(1, source).unwrap();
        assert_eq!((items.next(), items.next()), (Some(0), Some(1)));
        let third = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| items.next()));
        assert!(third.is_err());
    }
}
