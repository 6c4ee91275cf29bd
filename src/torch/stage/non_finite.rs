//! Numbers that are not finite, looked for as they are made.

use super::accumulator::Accumulator;
use super::border::BorderGradients;
use super::layers::Layers;
use crate::torch::gradients::finite;
use crate::torch::step::StepSettings;

/// Where they are to fail the step: whether a backward has made any, in the gradients of
/// parameters or of the stage's inputs.
///
/// # Errors
/// It has; the layer is the one that is said to run.
pub(super) fn check(
    settings: &StepSettings,
    accumulator: &Accumulator,
    layers: &Layers,
    inputs: Option<&BorderGradients>,
) -> anyhow::Result<()> {
    if !settings.mode.fails_on_gradients() {
        return Ok(());
    }
    if let Some(name) = accumulator.first_non_finite()? {
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
