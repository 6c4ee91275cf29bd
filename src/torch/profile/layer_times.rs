//! Layer times for one micro-batch, measured in less than a step: enough to choose cuts.

use std::thread;
use std::time::{Duration, Instant};

use gpipe_partitioner::ActionKind;
use tch::Device;

use super::chain::{Chain, Plan, Way};
use super::flow::Flow;
use super::measure::no_thread;
use super::{ProfileOptions, Sample};
use crate::error::Error;
use crate::threads::spawn;
use crate::{Sequential, caught, prepare_thread, share_of_cores};

/// Time after which each layer is measured only once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns how long the forward and the joint backward of each layer take for the whole sample as a
/// micro-batch, in microseconds of the thread, on the first of the devices.
///
/// Layers are built, run a few times and dropped one after the other: no more than one is in
/// memory. The shortest times count, as other programs only add to them.
///
/// # Errors
/// [`Error::Build`] and [`Error::Profile`] where a layer fails, with its name.
pub fn layer_times(
    model: &Sequential,
    sample: Sample,
    options: &ProfileOptions,
) -> Result<Vec<f64>, Error> {
    let device = options.devices.first().copied().unwrap_or(Device::Cpu);
    let threads = options.threads_per_stage;
    let threads = threads.unwrap_or_else(|| share_of_cores(&options.devices));
    let plan = Plan::new(model, device, options.seed)?.with_precision(options.precision);
    crate::prepare(&options.devices)?;
    // Set up the thread like a stage's.
    let kernels = options.kernels;
    let measure = move || {
        caught(|| {
            prepare_thread(device, threads)?;
            kernels.set_here(device)?;
            Ok(times(&plan, &sample))
        })
        .map_err(Error::Build)?
    };
    thread::scope(|scope| {
        let measured = spawn(scope, measure).map_err(|error| no_thread(&error))?;
        let gone = || Err(Error::Build(anyhow::anyhow!("the measuring thread died")));
        measured.join().unwrap_or_else(|_| gone())
    })
}

fn times(plan: &Plan, sample: &Sample) -> Result<Vec<f64>, Error> {
    let samples = crate::batch::samples(&sample.input, "input", None)?;
    let mut flow = Flow::new(sample, samples as usize)?.on(plan.device)?;
    let loss = sample.loss.as_ref().map(|(_, loss)| loss);
    let hurry = Instant::now() + PATIENCE;
    let mut all = Vec::with_capacity(plan.layers.len());
    for number in 0..plan.layers.len() {
        let mut chain = Chain::build(plan, number..number + 1, loss)?;
        chain.hurry_from(hurry);
        let mut least = [f64::INFINITY; ActionKind::ALL.len()];
        let out = chain.step(Way::Joint, &flow, &mut |_, kind, first, took| {
            if !first {
                let least = &mut least[kind as usize];
                *least = least.min(took.busy);
            }
        })?;
        let kinds = [ActionKind::Forward, ActionKind::Backward];
        let took = kinds.map(|kind| least[kind as usize]);
        all.push(took.into_iter().filter(|took| took.is_finite()).sum());
        flow.pass_on(out);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor, nn};

    use super::*;

    #[test]
    fn a_layer_that_computes_more_takes_longer_however_few_its_parameters() {
        let model = Sequential::new()
            .layer("wide", |p| {
                nn::conv2d(
                    p,
                    8,
                    8,
                    3,
                    nn::ConvConfig {
                        padding: 1,
                        ..Default::default()
                    },
                )
            })
            .layer("flat", |_| {
                nn::func(|x: &Tensor| x.mean_dim([2, 3].as_slice(), false, Kind::Float))
            })
            .layer("head", |p| {
                nn::linear(p, 8, 512, nn::LinearConfig::default())
            });
        let sample = Sample::new(Tensor::ones([4, 8, 64, 64], (Kind::Float, Device::Cpu)));
        let times = layer_times(&model, sample, &ProfileOptions::default()).unwrap();
        let parameters = model.parameter_bytes().unwrap();
        assert!(
            times[0] > times[2] && parameters[0] < parameters[2],
            "{times:?} {parameters:?}"
        );
    }
}
