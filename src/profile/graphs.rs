//! Which layers can be put into CUDA graphs: found out by trying.

use std::sync::Arc;

use gpipe_partitioner::ScheduleKind;
use tch::{Device, Kind, Tensor};

use super::Sample;
use crate::error::Error;
use crate::torch::{GraphUse, Loss, LossFn, Sequential, Values};
use crate::{Pipeline, on_values};

/// Steps after which a stage has captured what it can, and replayed it.
const STEPS: usize = 5;

/// Why each layer's passes cannot be put into graphs; none where they can.
///
/// A device without graphs, or without the memory for a step of the whole model, is such a
/// reason too.
pub(super) fn refusals(model: &Sequential, sample: &Sample, device: Device) -> Vec<Option<String>> {
    match tried(model, sample, device) {
        Ok(uses) => uses.into_iter().map(refusal).collect(),
        Err(error) => vec![Some(format!("trying it failed: {error}")); model.len()],
    }
}

fn refusal(of: GraphUse) -> Option<String> {
    let captured = of.replayed > 0;
    of.eager
        .or_else(|| (!captured).then(|| format!("it was not captured in {STEPS} steps")))
}

/// What becomes of graphs where each layer is a stage.
fn tried(model: &Sequential, sample: &Sample, device: Device) -> Result<Vec<GraphUse>, Error> {
    let mut pipe = Pipeline::builder(model.clone())
        .devices(&[device])
        .micro_batches(1)
        .schedule(ScheduleKind::LoopedBfs)
        .chunks(model.len())
        .balance(&vec![1; model.len()])
        .cuda_graphs(true)
        .build()?;
    for _ in 0..STEPS {
        let input = sample.input.shallow_clone();
        let report = if let Some((target, loss)) = &sample.loss {
            pipe.train_step(input, target.shallow_clone(), Shared(Arc::clone(loss)))?
        } else {
            let samples = crate::torch::batch::samples(&input, "input", None)?;
            let target = Tensor::f_zeros([samples], (Kind::Float, Device::Cpu))?;
            pipe.train_step(input, target, on_values(sum_of_all))?
        };
        report.read()?;
    }
    pipe.cuda_graphs()
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
            let found = refusals(&model, &sample, Device::Cpu);
            assert_eq!(found, vec![why.clone(); 3]);
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
