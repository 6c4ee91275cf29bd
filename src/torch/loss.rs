//! Loss functions: what the last stage computes from an output and a target.

use std::fmt;

use tch::Tensor;

use super::values::Values;

/// The loss of one micro-batch.
#[derive(Debug)]
pub struct Loss {
    /// One number, a mean over what the micro-batch holds.
    pub value: Tensor,
    /// What the mean was taken over (tokens, say), where that is not the number
    /// of samples. The mini-batch loss is the mean weighted by it.
    pub weight: Option<f64>,
}

/// What a loss function may return.
pub trait IntoLoss {
    /// The loss, or why there is none.
    fn into_loss(self) -> anyhow::Result<Loss>;
}

impl IntoLoss for Loss {
    fn into_loss(self) -> anyhow::Result<Loss> {
        Ok(self)
    }
}

impl IntoLoss for Tensor {
    fn into_loss(self) -> anyhow::Result<Loss> {
        Ok(Loss {
            value: self,
            weight: None,
        })
    }
}

/// A mean and what it was taken over.
impl IntoLoss for (Tensor, f64) {
    fn into_loss(self) -> anyhow::Result<Loss> {
        let (value, weight) = self;
        anyhow::ensure!(
            weight.is_finite() && weight >= 0.0,
            "the loss function returned the weight {weight}, which is not a count"
        );
        Ok(Loss {
            value,
            weight: Some(weight),
        })
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
