//! The loss on data that was never trained on.

use tch::{Device, Tensor};

use super::job::Job;
use super::signals::Stop;
use super::{Failure, failure};
use crate::Pipeline;
use crate::data::DataError;
use crate::torch::LossFn as _;

/// Mean over the batches of what was held out, per token; nothing where a signal came
/// before the last of them.
pub(super) fn loss(
    pipe: &mut Pipeline,
    batches: impl Iterator<Item = Result<(Tensor, Tensor), DataError>>,
    job: &Job,
    stop: &Stop,
) -> Result<Option<f64>, Failure> {
    let own = job.chosen.spec.loss();
    let (mut sum, mut count) = (0.0, 0.0);
    for batch in batches {
        if stop.asked() {
            return Ok(None);
        }
        let (x, y) = batch.map_err(anyhow::Error::from)?;
        let outputs = pipe.forward_values(x).map_err(failure)?;
        let tokens = y.numel() as f64;
        let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
        let loss = own.loss(&outputs, &y.f_to_device(device)?.into())?;
        let (of_batch, of) = loss.total(tokens)?;
        sum += of_batch;
        count += of;
    }
    Ok(Some(sum / count))
}
