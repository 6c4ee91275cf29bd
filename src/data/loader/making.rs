//! Making batches of items, on the workers.

use std::sync::Arc;

use crate::stack::{Collected, Stacking};
use crate::{Phase, Source, Stack};

/// Makes a batch of items.
type Collate<T, B> = Box<dyn Fn(Vec<T>) -> anyhow::Result<B> + Send + Sync>;

/// Begins a batch of so many items.
type Begin<T, B> = Box<dyn Fn(usize) -> Box<dyn Stacking<T, B>> + Send + Sync>;

/// Lets the source make a whole batch in one pass, if it can.
type Gather<S, B> = Box<dyn Fn(&S, u64, &[usize]) -> Option<anyhow::Result<B>> + Send + Sync>;

/// Three ways to make the same batch.
pub(crate) struct Making<S: Source, B> {
    pub(super) collate: Collate<S::Item, B>,
    pub(super) begin: Begin<S::Item, B>,
    pub(super) gather: Gather<S, B>,
}

impl<S: Source, B: 'static> Making<S, B> {
    /// Makes batches by a function of all items.
    pub(crate) fn by<F>(collate: F) -> Self
    where
        F: Fn(Vec<S::Item>) -> anyhow::Result<B> + Send + Sync + 'static,
    {
        let collate = Arc::new(collate);
        let own = Arc::clone(&collate);
        Self {
            collate: Box::new(move |items| own(items)),
            begin: Box::new(move |count| {
                let own = Arc::clone(&collate);
                Box::new(Collected::new(count, move |items| own(items)))
            }),
            gather: Box::new(|_, _, _| None),
        }
    }

    /// Appends a function of the batch.
    pub(super) fn then<C, F>(self, function: F) -> Making<S, C>
    where
        C: 'static,
        F: Fn(B) -> anyhow::Result<C> + Send + Sync + 'static,
    {
        let Self {
            collate,
            begin,
            gather,
        } = self;
        let function = Arc::new(function);
        let (of_all, of_rows) = (Arc::clone(&function), Arc::clone(&function));
        Making {
            collate: Box::new(move |items| {
                let batch = collate(items)?;
                Phase::Map.during(|| of_all(batch))
            }),
            begin: Box::new(move |count| {
                let (rows, function) = (begin(count), Arc::clone(&of_rows));
                Box::new(Then { rows, function })
            }),
            gather: Box::new(move |source, epoch, indices| {
                let batch = gather(source, epoch, indices)?;
                Some(batch.and_then(|batch| Phase::Map.during(|| function(batch))))
            }),
        }
    }
}

impl<S: Source<Item: Stack>> Making<S, <S::Item as Stack>::Batch> {
    /// Stacks items as their type defines.
    pub(crate) fn stacked() -> Self {
        Self {
            collate: Box::new(S::Item::stack),
            begin: Box::new(S::Item::stacking),
            gather: Box::new(|source, epoch, indices| {
                let batch = source.gather(epoch, indices)?;
                S::Item::gathered(batch).map(Ok)
            }),
        }
    }
}

/// A batch under construction, followed by a function.
struct Then<T, B, F> {
    rows: Box<dyn Stacking<T, B>>,
    function: Arc<F>,
}

impl<T, B, C, F: Fn(B) -> anyhow::Result<C>> Stacking<T, C> for Then<T, B, F> {
    fn push(&mut self, item: T) {
        self.rows.push(item);
    }

    fn finish(self: Box<Self>) -> anyhow::Result<C> {
        let batch = self.rows.finish()?;
        Phase::Map.during(|| (self.function)(batch))
    }
}
