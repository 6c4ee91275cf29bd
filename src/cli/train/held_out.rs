//! The loss on text that was never trained on.

use tch::{Device, Tensor};

use super::job::Job;
use super::{Failure, failure};
use crate::Pipeline;
use crate::data::TextSet;
use crate::torch::LossFn as _;

/// Mean over the held-out text in windows, per character.
pub(super) fn loss(
    pipe: &mut Pipeline,
    text: &TextSet,
    seq: usize,
    job: &Job,
) -> Result<f64, Failure> {
    let of_batch = job.chosen.spec.loss();
    let (mut sum, mut count) = (0.0, 0.0);
    for windows in text.held_out(job.recipe.batch, seq) {
        let (x, y) = windows.tensors()?;
        let outputs = pipe.forward_values(x).map_err(failure)?;
        let tokens = y.numel() as f64;
        let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
        let loss = of_batch.loss(&outputs, &y.f_to_device(device)?.into())?;
        let weight = loss.weight.unwrap_or(tokens);
        sum += loss.value.f_double_value(&[])? * weight;
        count += weight;
    }
    Ok(sum / count)
}
