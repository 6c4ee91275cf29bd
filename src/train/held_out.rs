//! The loss on data that was never trained on.

use tch::{Device, Kind, Tensor};

use super::error::TrainError;
use super::feed::Feed;
use super::hook::Hooks;
use super::stop::Stop;
use crate::torch::{LossFn, TorchError};
use crate::{Pipeline, Values};

/// Mean over the batches of what was held out, per thing that the loss function takes a mean
/// over; nothing where somebody asked for the end before the last of them.
pub(super) fn loss(
    pipe: &mut Pipeline,
    batches: &mut dyn Feed,
    own: &dyn LossFn,
    stop: &Stop,
    hooks: &mut Hooks<'_>,
) -> Result<Option<f64>, TrainError> {
    let (mut sum, mut count) = (0.0, 0.0);
    while let Some(batch) = batches.next_batch() {
        if stop.is_asked() {
            return Ok(None);
        }
        let (x, y) = batch.map_err(|error| {
            pipe.refuse(&format!("the next batch: {error:#}"));
            TrainError::Data(error)
        })?;
        let y = told(&x, y).map_err(crate::Error::from)?;
        let outputs = pipe.forward_values(x)?;
        // The loss is read at once.
        pipe.engine().in_time().map_err(crate::Error::from)?;
        let judged = judge(own, &outputs, &y).map_err(TrainError::HeldOut)?;
        sum += judged.0;
        count += judged.1;
        hooks.each(|hook| hook.held_out_batch());
    }
    Ok(Some(sum / count))
}

/// The targets; of a model that computes its loss itself, and has none, how many samples there are:
/// as many numbers, of which nothing is known but that.
///
/// # Errors
/// libtorch refuses.
pub(crate) fn told(inputs: &Values, targets: Values) -> Result<Values, TorchError> {
    let samples = inputs.present().next().map(Tensor::size);
    match samples.as_deref().and_then(<[i64]>::first) {
        Some(&samples) if targets.present().next().is_none() => {
            Ok(Tensor::f_zeros([samples], (Kind::Float, Device::Cpu))?.into())
        }
        _ => Ok(targets),
    }
}

/// The sum of the losses of a batch, and over how many things it is.
fn judge(own: &dyn LossFn, outputs: &Values, targets: &Values) -> anyhow::Result<(f64, f64)> {
    let things = targets.present().map(Tensor::numel).sum::<usize>() as f64;
    let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
    let targets = targets
        .shallow_clone()
        .try_map(|target| target.f_to_device(device))?;
    own.loss(outputs, &targets)?.total(things)
}
