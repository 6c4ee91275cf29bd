//! Loss functions of the zoo.

use std::fmt;
use std::sync::Arc;

use tch::{TchError, Tensor};

use crate::loss_kind::{NOTHING_IGNORED, out_of_range};
use gpipe_torch::{Loss, LossFn, Values};

/// A type-erased loss function, as returned by [`ModelSpec::loss`](super::ModelSpec::loss) and accepted
/// by a training step.
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
/// Every target counts, so that the loss of a mini-batch does not depend on its micro-batches: -100,
/// which PyTorch ignores, is not a class. [`NamedLoss::ignore_index`](crate::NamedLoss::ignore_index)
/// ignores targets, and weights each micro-batch by the remaining ones.
///
/// *Shapes*: logits `[samples, classes]`, targets `[samples]` of integers.
///
/// # Errors
/// The shapes do not match; on the CPU, a target is not a class.
pub fn class_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let none = None::<Tensor>;
    let loss =
        logits.f_cross_entropy_loss(targets, none, tch::Reduction::Mean, NOTHING_IGNORED, 0.0);
    loss.map_err(|error| out_of_range(error, logits, targets, NOTHING_IGNORED))
}

/// Mean cross-entropy of the tokens in nats; every target counts, as in [`class_cross_entropy`].
///
/// *Shapes*: logits `[batch, time, vocab]`, targets `[batch, time]` of integers.
pub fn token_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let vocab = logits.size().last().copied().unwrap_or(1);
    class_cross_entropy(&logits.f_view([-1, vocab])?, &targets.f_reshape([-1])?)
}

/// Mean binary cross-entropy of every element in nats; outputs are logits.
///
/// *Shapes*: both the same, targets from 0 to 1.
pub fn binary_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let (weight, positive) = (None::<Tensor>, None::<Tensor>);
    logits.f_binary_cross_entropy_with_logits(targets, weight, positive, tch::Reduction::Mean)
}
