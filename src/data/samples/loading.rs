//! Batches of samples.

use std::sync::Arc;

use tch::Tensor;

use super::Samples;
use crate::{Batches, Dataset, Source, Stack as _};
use gpipe_torch::Values;

/// A part of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Training samples, endlessly: each epoch shuffled or in the order of the data, in whole batches.
    Train,
    /// Held-out samples, once.
    HeldOut,
    /// All samples outside a test part, in order, without randomness, once.
    All,
}

/// Inputs and targets for a model.
type Both = (Values, Values);

impl Samples {
    /// Returns endless training batches: each epoch shuffled or in the order of the data
    /// ([`SampleOptions::shuffle`](super::SampleOptions::shuffle)), in whole batches.
    pub fn batches(&self, size: usize) -> Batches<impl Source + use<>, (Tensor, Tensor)> {
        let train = Dataset::new(shuffled(&self.train, self.order));
        train.batch(size).drop_last().endless()
    }

    /// Returns the held-out batches, once, if there are any.
    pub fn held_out(&self, size: usize) -> Option<Batches<impl Source + use<>, (Tensor, Tensor)>> {
        let held_out = self.held_out.as_ref()?;
        Some(Dataset::new(Arc::clone(held_out)).batch(size))
    }

    /// Returns batches of all samples outside a test part, in order, without randomness.
    pub fn in_order(&self, size: usize) -> Batches<impl Source + use<>, (Tensor, Tensor)> {
        Dataset::new(Arc::clone(&self.all)).batch(size)
    }

    /// Returns batches of a part, if it exists. For a model that computes its own loss, the targets are
    /// its last input.
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

/// Returns batches of samples of any tensors.
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

/// Shuffles each epoch by the seed; without one, keeps the order.
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
