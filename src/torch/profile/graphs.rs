//! Trial of CUDA graphs: the layers that can be captured, and the host's time per replay.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Micros, ScheduleKind};
use tch::{Device, Kind, Tensor};

use super::Sample;
use crate::error::Error;
use crate::{
    GraphUse, Loss, LossFn, Pipeline, Precision, Sequential, StepReport, Values, on_values,
};

/// Steps after which a stage has captured and replayed all that it can.
const STEPS: usize = 5;
/// Replay-only steps to time; the fastest counts.
const TIMED: usize = 5;

/// Result of the trial.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Reason why each layer's passes cannot be captured; `None` where they can.
    pub(super) refusals: Vec<Option<String>>,
    /// Host time of a replay with its copies; `None` if some layer has no graph.
    pub(super) replay: Option<Micros>,
}

/// Tries graphs with each layer as a stage.
///
/// A device without graphs, or without memory for a step of the whole model, also yields a refusal.
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

/// Returns the host's time per replay, two for each layer. The fastest step counts: disturbances
/// only slow a thread down. The host finishes the step before the device does.
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

/// Returns why a stage has no graphs.
fn refusal(of: GraphUse) -> Option<String> {
    let captured = of.replayed > 0;
    of.eager
        .or_else(|| (!captured).then(|| format!("it was not captured in {STEPS} steps")))
}

/// Builds a pipeline with each layer as a stage.
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
    let samples = crate::batch::samples(&input, "input", None)?;
    let target = Tensor::f_zeros([samples], (Kind::Float, Device::Cpu))?;
    pipe.train_step(input, target, on_values(sum_of_all))
}

/// A loss for when none was given: gradients reach all outputs.
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

    /// On a device without graphs each layer is refused for that reason, with a loss and without.
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
