//! Batches of samples.

use std::sync::Arc;

use tch::Tensor;

use super::Samples;
use crate::{Batches, Dataset, Source, Stack as _};
use gpipe_torch::Values;

/// Which samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Those to train on, without end: all of an epoch in another order each time, or in that of the
    /// data, whole batches alone.
    Train,
    /// Those that are held out, once.
    HeldOut,
    /// All but those of a test part, in their order, without anything random, once.
    All,
}

/// Inputs and targets of a model.
type Both = (Values, Values);

impl Samples {
    /// Batches to train on, without end: all samples of an epoch in another order each time, or in that
    /// of the data ([`SampleOptions::shuffle`](super::SampleOptions::shuffle)), whole batches alone.
    pub fn batches(&self, size: usize) -> Batches<impl Source + use<>, (Tensor, Tensor)> {
        let train = Dataset::new(shuffled(&self.train, self.order));
        train.batch(size).drop_last().endless()
    }

    /// Batches of what is held out, once, where something is.
    pub fn held_out(&self, size: usize) -> Option<Batches<impl Source + use<>, (Tensor, Tensor)>> {
        let held_out = self.held_out.as_ref()?;
        Some(Dataset::new(Arc::clone(held_out)).batch(size))
    }

    /// Batches of all samples but those of a test part, in their order, without anything random.
    pub fn in_order(&self, size: usize) -> Batches<impl Source + use<>, (Tensor, Tensor)> {
        Dataset::new(Arc::clone(&self.all)).batch(size)
    }

    /// Batches of a part, where there is one. Of a model that computes its loss itself the targets
    /// are its last input.
    pub fn values(
        &self,
        part: Part,
        size: usize,
        own_loss: bool,
    ) -> Option<Batches<impl Source, Both>> {
        let source = match part {
            Part::Train => &self.train,
            Part::HeldOut => self.held_out.as_ref()?,
            Part::All => &self.all,
        };
        let collate = move |pairs: Vec<(Tensor, Tensor)>| -> anyhow::Result<Both> {
            let (x, y) = <(Tensor, Tensor)>::stack(pairs)?;
            Ok(if own_loss {
                (Values::from(vec![x, y]), Values::new())
            } else {
                (x.into(), y.into())
            })
        };
        Some(loaded(source, part, (size, self.order), collate))
    }
}

/// Batches of samples of whatever tensors.
pub(super) fn loaded<T: Send + 'static>(
    source: &Arc<dyn Source<Item = T>>,
    part: Part,
    (size, order): (usize, Option<u64>),
    collate: impl Fn(Vec<T>) -> anyhow::Result<Both> + Send + Sync + 'static,
) -> Batches<Arc<dyn Source<Item = T>>, Both> {
    if part != Part::Train {
        return Dataset::new(Arc::clone(source)).batch_with(size, collate);
    }
    let batches = Dataset::new(shuffled(source, order)).batch_with(size, collate);
    batches.drop_last().endless()
}

/// In an order of the seed, another one each epoch; as they are without one.
fn shuffled<T: Send + 'static>(
    source: &Arc<dyn Source<Item = T>>,
    order: Option<u64>,
) -> Arc<dyn Source<Item = T>> {
    let source = Arc::clone(source);
    match order {
        Some(seed) => Arc::new(Dataset::new(source).shuffle(usize::MAX, seed)),
        None => source,
    }
}
