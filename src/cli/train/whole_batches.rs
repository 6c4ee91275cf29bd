//! Held-out batches of one size alone, for programs that were exported for that size.

use serde_json::Value;

use crate::train::{self, Feed, IntoFeed};

/// Batches without those that have other numbers of samples, which the last one may have.
#[derive(Debug)]
pub(super) struct WholeBatches<B> {
    batches: B,
    samples: Option<i64>,
}

impl<B> WholeBatches<B> {
    /// All of them where any size will do.
    pub(super) fn of(batches: B, samples: Option<i64>) -> Self {
        Self { batches, samples }
    }
}

impl<B: IntoFeed> IntoFeed for WholeBatches<B> {
    type Feed = WholeBatches<B::Feed>;

    fn start(self, from: Option<&Value>) -> anyhow::Result<Self::Feed> {
        Ok(WholeBatches {
            batches: self.batches.start(from)?,
            samples: self.samples,
        })
    }
}

impl<F: Feed> Feed for WholeBatches<F> {
    fn next_batch(&mut self) -> Option<train::Batch> {
        loop {
            let batch = self.batches.next_batch()?;
            let (Some(wanted), Ok((inputs, _))) = (self.samples, &batch) else {
                return Some(batch);
            };
            let size = inputs.present().next().map(|input| input.size());
            if size.as_deref().and_then(<[i64]>::first) == Some(&wanted) {
                return Some(batch);
            }
        }
    }

    fn state(&self) -> Value {
        self.batches.state()
    }

    fn batches(&self) -> Option<usize> {
        self.batches.batches()
    }
}
