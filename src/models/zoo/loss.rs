//! How outputs are judged.

use std::fmt;
use std::sync::Arc;

use tch::{TchError, Tensor};

use crate::torch::{Loss, LossFn, Values};

/// A loss function whose type is forgotten: what [`ModelSpec::loss`](super::ModelSpec::loss)
/// gives, and what a training step takes.
#[derive(Clone)]
pub struct SharedLoss(Arc<dyn LossFn>);

impl SharedLoss {
    pub(super) fn new(loss: impl LossFn) -> Self {
        Self(Arc::new(loss))
    }
}

impl fmt::Debug for SharedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLoss")
    }
}

impl LossFn for SharedLoss {
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        self.0.loss(outputs, targets)
    }
}

/// Mean cross-entropy in nats.
///
/// *Shapes*: logits `[samples, classes]`, targets `[samples]` of integers.
pub fn class_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let none = None::<Tensor>;
    logits.f_cross_entropy_loss(targets, none, tch::Reduction::Mean, -100, 0.0)
}

/// Mean cross-entropy of the tokens in nats.
///
/// *Shapes*: logits `[batch, time, vocab]`, targets `[batch, time]` of integers.
pub fn token_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let vocab = logits.size().last().copied().unwrap_or(1);
    class_cross_entropy(&logits.f_view([-1, vocab])?, &targets.f_reshape([-1])?)
}

/// Mean binary cross-entropy of every element in nats, the output before its sigmoid.
///
/// *Shapes*: both the same, targets from 0 to 1.
pub fn binary_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let (weight, positive) = (None::<Tensor>, None::<Tensor>);
    logits.f_binary_cross_entropy_with_logits(targets, weight, positive, tch::Reduction::Mean)
}
