//! Loss functions, computed by the last stage from an output and a target.

use std::fmt;

use tch::{TchError, Tensor};

use super::values::Values;

/// The loss of one micro-batch, and how the losses of a mini-batch are put together.
///
/// All micro-batches of a step are put together in one way. [`Loss::weighted`] is for means
/// over something else than samples, such as tokens that are not padding:
///
/// ```
/// # use gpipe::{Loss, tch::{Kind, Reduction, TchError, Tensor}};
/// const PADDING: i64 = -100;
/// let loss = |logits: &Tensor, tokens: &Tensor| -> Result<Loss, TchError> {
///     let none = None::<Tensor>;
///     let mean = logits.f_cross_entropy_loss(tokens, none, Reduction::Mean, PADDING, 0.0)?;
///     let valid = tokens.f_ne(PADDING)?.f_sum(Kind::Int64)?.f_int64_value(&[])?;
///     Ok(Loss::weighted(mean, valid as f64))
/// };
/// # let _ = loss;
/// ```
#[derive(Debug)]
pub struct Loss {
    /// A scalar.
    pub value: Tensor,
    pub(crate) reduction: Reduction,
}

/// How the losses of micro-batches combine into that of the mini-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reduction {
    /// Their mean, weighted by samples.
    Mean,
    /// Their sum.
    Sum,
    /// Their mean, weighted by these numbers.
    Weighted(f64),
}

impl Loss {
    /// A mean over the samples of the micro-batch. The mini-batch's loss is the mean over
    /// all samples. A plain tensor is taken for such a mean.
    pub fn mean(value: Tensor) -> Self {
        let reduction = Reduction::Mean;
        Self { value, reduction }
    }

    /// A sum over the micro-batch. The mini-batch's loss is the sum over all of it.
    pub fn sum(value: Tensor) -> Self {
        let reduction = Reduction::Sum;
        Self { value, reduction }
    }

    /// A mean over `weight` things of the micro-batch (valid tokens, say). The mini-batch's
    /// loss is the mean over the things of all micro-batches: the sum of weight times value
    /// over the sum of weights. The pair `(value, weight)` is taken for the same.
    ///
    /// A micro-batch of weight 0 counts nothing: its value may be NaN, and nothing goes back
    /// from it. Where all weights are 0, the step fails with
    /// [`BatchError::NoWeight`](crate::BatchError::NoWeight); a weight that is negative or
    /// not finite fails it, too.
    pub fn weighted(value: Tensor, weight: f64) -> Self {
        let reduction = Reduction::Weighted(weight);
        Self { value, reduction }
    }

    /// # Errors
    /// The weight is none.
    pub(crate) fn checked(self) -> anyhow::Result<Self> {
        if let Reduction::Weighted(weight) = self.reduction {
            anyhow::ensure!(
                weight.is_finite() && weight >= 0.0,
                "the loss function returned the weight {weight}, which is not a count"
            );
        }
        Ok(self)
    }

    /// The sum over a batch, and over how many things that is: its own number, or `things`.
    ///
    /// # Errors
    /// The weight is none, or the value is not one number.
    pub fn total(self, things: f64) -> anyhow::Result<(f64, f64)> {
        let loss = self.checked()?;
        if !loss.counts() {
            return Ok((0.0, 0.0));
        }
        let value = loss.value.f_double_value(&[])?;
        Ok(match loss.reduction {
            Reduction::Mean => (value * things, things),
            Reduction::Sum => (value, things),
            Reduction::Weighted(weight) => (value * weight, weight),
        })
    }

    /// Returns whether the micro-batch has a weight above 0.
    pub(crate) fn counts(&self) -> bool {
        self.reduction != Reduction::Weighted(0.0)
    }
}

impl Reduction {
    /// The gradient of the loss of a micro-batch with this share of the samples. Weighted
    /// gradients are divided by the sum of the weights at the end of the step.
    pub(crate) fn seed(self, share: f64) -> f64 {
        match self {
            Self::Mean => share,
            Self::Sum => 1.0,
            Self::Weighted(weight) => weight,
        }
    }

    /// The reduction as a host tensor that is sent along with the loss: none for a mean, an
    /// empty one for a sum.
    pub(crate) fn to_tensor(self) -> Option<Tensor> {
        match self {
            Self::Mean => None,
            Self::Sum => Some(Tensor::from_slice::<f64>(&[])),
            Self::Weighted(weight) => Some(Tensor::from_slice(&[weight])),
        }
    }

    /// The reduction that [`Reduction::to_tensor`] made a tensor of.
    pub(crate) fn from_tensor(tensor: Option<&Tensor>) -> Result<Self, TchError> {
        let Some(tensor) = tensor else {
            return Ok(Self::Mean);
        };
        let numbers = Vec::<f64>::try_from(tensor)?;
        Ok(numbers.first().copied().map_or(Self::Sum, Self::Weighted))
    }

    /// The name that the user knows it by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Sum => "sum",
            Self::Weighted(_) => "weighted mean",
        }
    }
}

/// Return type of a loss function.
pub trait IntoLoss {
    /// The loss, or why there is none.
    fn into_loss(self) -> anyhow::Result<Loss>;
}

impl IntoLoss for Loss {
    fn into_loss(self) -> anyhow::Result<Loss> {
        Ok(self)
    }
}

/// [`Loss::mean`].
impl IntoLoss for Tensor {
    fn into_loss(self) -> anyhow::Result<Loss> {
        Ok(Loss::mean(self))
    }
}

/// [`Loss::weighted`].
impl IntoLoss for (Tensor, f64) {
    fn into_loss(self) -> anyhow::Result<Loss> {
        Ok(Loss::weighted(self.0, self.1))
    }
}

impl<T: IntoLoss, E: Into<anyhow::Error>> IntoLoss for Result<T, E> {
    fn into_loss(self) -> anyhow::Result<Loss> {
        self.map_err(Into::into)?.into_loss()
    }
}

/// Computes the loss of one micro-batch, on the last stage's thread.
///
/// Closures of `(&Tensor, &Tensor)` are loss functions; [`on_values`] makes one
/// from a closure that takes several outputs or targets.
pub trait LossFn: Send + Sync + 'static {
    /// The loss of `outputs` against `targets`.
    ///
    /// # Errors
    /// Whatever stops it: the step fails, naming the micro-batch.
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss>;
}

impl<F, R> LossFn for F
where
    F: Fn(&Tensor, &Tensor) -> R + Send + Sync + 'static,
    R: IntoLoss,
{
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        self(outputs.one()?, targets.one()?).into_loss()
    }
}

/// A loss function over several outputs or targets; see [`on_values`].
pub struct OnValues<F>(F);

impl<F> fmt::Debug for OnValues<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnValues")
    }
}

/// Makes a loss function from a closure over all outputs and targets.
pub fn on_values<F, R>(f: F) -> OnValues<F>
where
    F: Fn(&Values, &Values) -> R + Send + Sync + 'static,
    R: IntoLoss,
{
    OnValues(f)
}

impl<F, R> LossFn for OnValues<F>
where
    F: Fn(&Values, &Values) -> R + Send + Sync + 'static,
    R: IntoLoss,
{
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        (self.0)(outputs, targets).into_loss()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_over_what_a_loss_is_over() {
        let value = || Tensor::from(3.0);
        assert_eq!(Loss::mean(value()).total(4.0).unwrap(), (12.0, 4.0));
        assert_eq!(Loss::sum(value()).total(4.0).unwrap(), (3.0, 4.0));
        assert_eq!(Loss::weighted(value(), 2.0).total(4.0).unwrap(), (6.0, 2.0));
        // It was once NaN, and so was the mean over all batches.
        let nothing = Loss::weighted(Tensor::from(f64::NAN), 0.0);
        assert_eq!(nothing.total(4.0).unwrap(), (0.0, 0.0));
        assert!(Loss::weighted(value(), -1.0).total(4.0).is_err());
    }

    #[test]
    fn how_losses_are_put_together_travels_as_a_tensor() {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Weighted(2.5)] {
            let sent = reduction.to_tensor();
            assert_eq!(Reduction::from_tensor(sent.as_ref()).unwrap(), reduction);
        }
    }
}
