//! Checks a backward's results for non-finite numbers (NaN, infinity).

use super::accumulator::Accumulator;
use super::border::BorderGradients;
use super::layers::Layers;
use crate::gradients::finite;
use crate::step::StepSettings;

/// Checks the gradients of parameters and of the stage's inputs, if non-finite ones fail the step.
///
/// # Errors
/// A gradient is not finite. The progress then names its layer.
pub(super) fn check(
    settings: &StepSettings,
    accumulator: &Accumulator,
    layers: &Layers,
    inputs: Option<&BorderGradients>,
) -> anyhow::Result<()> {
    if !settings.mode.fails_on_gradients() {
        return Ok(());
    }
    if let Some((_, name)) = accumulator.first_non_finite()? {
        if let Some(number) = layers.owner(&name) {
            layers.progress().layer(number);
        }
        anyhow::bail!("the gradient of `{name}` is not finite (NaN or infinity)");
    }
    let mut inputs = inputs.into_iter().flat_map(BorderGradients::present);
    if !inputs.try_fold(true, |all, grad| anyhow::Ok(all && finite(grad)?))? {
        layers.progress().layer(0);
        anyhow::bail!("the gradient of the stage's input is not finite (NaN or infinity)");
    }
    Ok(())
}
