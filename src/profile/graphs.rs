//! Which layers can be put into CUDA graphs, and what a replay takes the host: found out by
//! trying.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Micros, ScheduleKind};
use tch::{Device, Kind, Tensor};

use super::Sample;
use crate::error::Error;
use crate::torch::{GraphUse, Loss, LossFn, Precision, Sequential, Values};
use crate::{Pipeline, StepReport, on_values};

/// Steps after which a stage has captured what it can, and replayed it.
const STEPS: usize = 5;
/// Steps of replays alone of which the fastest counts.
const TIMED: usize = 5;

/// What came of trying it.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Why each layer's passes cannot be put into graphs; none where they can.
    pub(super) refusals: Vec<Option<String>>,
    /// What a replay takes the host, with its copies; none where some layer has none.
    pub(super) replay: Option<Micros>,
}

/// Tries a stage of each layer.
///
/// A device without graphs, or without the memory for a step of the whole model, is a reason
/// against them too.
pub(super) fn tried(
    model: &Sequential,
    sample: &Sample,
    device: Device,
    precision: Precision,
) -> Tried {
    let attempt = || -> Result<Tried, Error> {
        let mut pipe = build(model, device, precision)?;
        for _ in 0..STEPS {
            step(&mut pipe, sample)?.read()?;
        }
        let uses = pipe.cuda_graphs()?;
        let refusals: Vec<_> = uses.into_iter().map(refusal).collect();
        let replay = if refusals.iter().all(Option::is_none) {
            Some(replay(&mut pipe, sample, model.len())?)
        } else {
            None
        };
        Ok(Tried { refusals, replay })
    };
    attempt().unwrap_or_else(|error| Tried {
        refusals: vec![Some(format!("trying it failed: {error}")); model.len()],
        replay: None,
    })
}

/// The host's time for one of the step's replays, two of each layer: what disturbs a thread
/// makes it slower, never faster. The step is over for the host before it is for the device.
fn replay(pipe: &mut Pipeline, sample: &Sample, layers: usize) -> Result<Micros, Error> {
    let mut fastest = f64::INFINITY;
    for _ in 0..TIMED {
        let begin = Instant::now();
        let report = step(pipe, sample)?;
        fastest = fastest.min(begin.elapsed().as_secs_f64());
        report.read()?;
    }
    Ok(super::layers::micros(fastest * 1e6 / (2 * layers) as f64))
}

/// Why a stage has no graphs.
fn refusal(of: GraphUse) -> Option<String> {
    let captured = of.replayed > 0;
    of.eager
        .or_else(|| (!captured).then(|| format!("it was not captured in {STEPS} steps")))
}

/// Each layer is a stage.
fn build(model: &Sequential, device: Device, precision: Precision) -> Result<Pipeline, Error> {
    Pipeline::builder(model.clone())
        .devices(&[device])
        .micro_batches(1)
        .schedule(ScheduleKind::LoopedBfs)
        .chunks(model.len())
        .balance(&vec![1; model.len()])
        .precision(precision)
        .cuda_graphs(true)
        .build()
}

fn step(pipe: &mut Pipeline, sample: &Sample) -> Result<StepReport, Error> {
    let input = sample.input.shallow_clone();
    if let Some((target, loss)) = &sample.loss {
        return pipe.train_step(input, target.shallow_clone(), Shared(Arc::clone(loss)));
    }
    let samples = crate::torch::batch::samples(&input, "input", None)?;
    let target = Tensor::f_zeros([samples], (Kind::Float, Device::Cpu))?;
    pipe.train_step(input, target, on_values(sum_of_all))
}

/// A loss where none was given: gradients reach all outputs.
fn sum_of_all(outputs: &Values, _: &Values) -> Result<Loss, tch::TchError> {
    let mut sum = Tensor::from(0.0_f32);
    for output in outputs
        .present()
        .filter(|output| output.is_floating_point())
    {
        sum = output
            .f_sum(Kind::Float)?
            .f_add(&sum.f_to_device(output.device())?)?;
    }
    Ok(Loss::sum(sum))
}

/// The caller's loss function.
struct Shared(Arc<dyn LossFn>);

impl LossFn for Shared {
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        self.0.loss(outputs, targets)
    }
}

#[cfg(test)]
mod tests {
    use tch::nn;

    use super::*;

    /// On a device without graphs each layer has that reason, with a loss and without.
    #[test]
    fn each_layer_is_tried() {
        let linear = |p: &nn::Path<'_>, _| nn::linear(p, 4, 4, nn::LinearConfig::default());
        let model = Sequential::new().layers("l", 3, linear);
        let ones = || Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
        let loss = |output: &Tensor, target: &Tensor| (output - target).square().mean(Kind::Float);
        let why = Some("it computes on the CPU, which has no graphs".to_owned());
        for sample in [
            Sample::new(ones()),
            Sample::new(ones()).with_loss(ones(), loss),
        ] {
            let found = tried(&model, &sample, Device::Cpu, Precision::F32);
            assert_eq!(found.refusals, vec![why.clone(); 3]);
            assert_eq!(found.replay, None);
        }
    }

    #[test]
    fn what_was_neither_captured_nor_refused_is_a_reason() {
        let of = |captured, replayed, eager: Option<&str>| {
            let eager = eager.map(str::to_owned);
            refusal(GraphUse {
                captured,
                replayed,
                eager,
            })
        };
        assert_eq!(of(2, 4, None), None);
        assert_eq!(of(0, 0, Some("it draws")).as_deref(), Some("it draws"));
        assert_eq!(of(0, 0, None).unwrap(), "it was not captured in 5 steps");
    }
}
