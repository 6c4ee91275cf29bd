//! Dropout whose masks do not depend on the partition.

use crate::{Context, Layer, Values};

/// Zeroes elements at random while training ([`Context::dropout`] on every value).
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    p: f64,
}

impl Dropout {
    /// Dropout with probability `p`, in `[0, 1)`.
    pub fn new(p: f64) -> Self {
        Self { p }
    }
}

impl Layer for Dropout {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        inputs.try_map(|tensor| ctx.dropout(&tensor, self.p))
    }

    fn graph_safe(&self) -> bool {
        true
    }
}
