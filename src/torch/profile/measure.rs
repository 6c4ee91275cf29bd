//! Rounds of measurements until the numbers are precise enough or time is up.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpipe_partitioner::ActionKind;
use tch::{Tensor, nn};

use super::chain::{Chain, Plan, Way};
use super::flow::Flow;
use super::measurements::{LayerSeries, Measurements};
use super::similar_layers::{self, Looks};
use super::watch::{ProfileProgress, Watch};
use super::{ProfileOptions, Sample};
use crate::error::Error;
use crate::threads::spawn;
use crate::{LossFn, Sequential, TorchError, caught, prepare_thread};

/// Time after which brief measurements are not repeated.
pub(super) const MOST_IN_BRIEF: Duration = Duration::from_secs(3);

/// Rounds over layers that compute nothing.
const IDLE_ROUNDS: usize = 20;

/// A number for each kind of action.
type PerKind = [f64; ActionKind::ALL.len()];

/// Task of a measuring thread.
#[derive(Debug, Clone)]
pub(super) struct MeasureTask<'a> {
    pub(super) plan: Plan,
    pub(super) sample: Sample,
    pub(super) options: &'a ProfileOptions,
    pub(super) sizes: &'a [usize],
    pub(super) threads: usize,
    pub(super) watch: Watch<'a>,
    /// Number of threads that run the same in parallel, as the other stages do in training.
    pub(super) beside: usize,
}

impl MeasureTask<'_> {
    /// Drops the sizes for which time did not suffice with all cores.
    pub(super) fn no_larger_than(self, alone: Option<&(usize, Measurements)>) -> Self {
        let most = alone.map_or(self.sizes.len(), |(_, own)| own.series.len());
        Self {
            sizes: &self.sizes[..most],
            ..self
        }
    }

    /// Measures on a separate thread that is set up like a stage's.
    ///
    /// The parallel threads signal that they are ready and do not wait, so that nothing hangs if
    /// one of them cannot be started or dies.
    pub(super) fn run(self) -> Result<Measurements, Error> {
        let stop = AtomicBool::new(false);
        let (ready, others) = channel();
        thread::scope(|scope| {
            // Also if a thread cannot be started: the scope waits for those that run.
            let _at_the_end = Stopping(&stop);
            for _ in 0..self.beside {
                let (other, ready, stop) = (self.clone(), ready.clone(), &stop);
                spawn(scope, move || other.keep_busy(ready, stop))
                    .map_err(|error| no_thread(&error))?;
            }
            drop(ready);
            let measure = move || caught(|| Ok(self.measure(&others))).map_err(Error::Build)?;
            let measured = spawn(scope, measure).map_err(|error| no_thread(&error))?;
            let gone = || Err(Error::Build(anyhow::anyhow!("the measuring thread died")));
            measured.join().unwrap_or_else(|_| gone())
        })
    }

    fn measure(&self, others: &Receiver<()>) -> Result<Measurements, Error> {
        let prepared = self.prepare_thread();
        let layers = self.plan.layers.len();
        let mut outcome = Measurements {
            series: vec![Vec::new(); self.sizes.len()],
            bytes: vec![Vec::new(); self.sizes.len()],
            ..Measurements::default()
        };
        let mut flows = self.flows();
        let group = if self.options.low_memory { 1 } else { layers };
        let (mut first, mut known) = (true, Vec::new());
        for start in (0..layers).step_by(group) {
            let chain = Chain::build(&self.plan, start..start + group, self.loss());
            if std::mem::take(&mut first) {
                prepared.clone()?;
                // Ends early if a parallel thread died.
                others.iter().take(self.beside).for_each(drop);
            }
            self.watch.tell(ProfileProgress::Layers {
                from: start,
                to: start + group,
                of: layers,
            });
            let flows = flows
                .as_mut()
                .map_err(|error| Error::Torch(error.clone()))?;
            let chain = &mut chain?;
            let looks = if self.brief() {
                Looks::of(chain, flows)?
            } else {
                None
            };
            if let Some(looks) = &looks
                && similar_layers::taken_for_known(looks, &known, chain, flows, &mut outcome)?
            {
                continue;
            }
            let Some(looks) = looks else {
                self.measure_chain(chain, flows, &mut outcome)?;
                continue;
            };
            let entered: Vec<Flow> = flows.iter().map(Flow::shallow_clone).collect();
            self.measure_chain(chain, flows, &mut outcome)?;
            known.push(looks.known(chain, &entered, start)?);
        }
        // Nothing is known of the sizes for which time did not suffice.
        let measured = outcome.series.iter().take_while(|own| !own.is_empty());
        outcome.keep(measured.count());
        (outcome.idle, outcome.idle_host) = self.idle()?;
        Ok(outcome)
    }

    fn brief(&self) -> bool {
        self.options.low_memory && self.options.brief
    }

    fn flows(&self) -> Result<Vec<Flow>, TorchError> {
        let sizes = self.sizes.iter();
        let flow = |&size: &usize| Flow::new(&self.sample, size)?.on(self.plan.device);
        sizes.map(flow).collect()
    }

    fn loss(&self) -> Option<&Arc<dyn LossFn>> {
        self.sample.loss.as_ref().map(|(_, loss)| loss)
    }

    /// Measures a chain; `flows` then become its outputs.
    fn measure_chain(
        &self,
        chain: &mut Chain,
        flows: &mut [Flow],
        outcome: &mut Measurements,
    ) -> Result<(), Error> {
        let layers = chain.len();
        let mut series = vec![vec![LayerSeries::default(); layers]; flows.len()];
        let budget = self.options.budget * u32::try_from(layers * flows.len()).unwrap_or(u32::MAX);
        let start = Instant::now();
        if self.options.brief {
            chain.hurry_from(start + MOST_IN_BRIEF);
        }
        let outs = self.warm_up(chain, flows, &mut series)?;
        let flows = &mut flows[..outs.len()];
        series.truncate(outs.len());
        self.watch.tell(ProfileProgress::WarmedUp);
        let enough = self.options.brief && start.elapsed() >= self.most_of_a_warm_up(budget);
        for (flow, bytes) in flows.iter().zip(&mut outcome.bytes) {
            bytes.extend(chain.bytes(flow)?);
        }
        if enough {
            let all = series.iter_mut().flatten();
            all.for_each(LayerSeries::count_warm_up);
        } else {
            self.rounds(chain, flows, &mut series, budget)?;
        }
        for (flow, out) in flows.iter_mut().zip(outs) {
            flow.pass_on(out);
        }
        for (all, own) in outcome.series.iter_mut().zip(series) {
            all.extend(own);
        }
        Ok(())
    }

    fn rounds(
        &self,
        chain: &mut Chain,
        flows: &[Flow],
        series: &mut [Vec<LayerSeries>],
        budget: Duration,
    ) -> Result<(), Error> {
        let start = Instant::now();
        for rounds in 1.. {
            for (flow, series) in flows.iter().zip(&mut *series) {
                round(chain, flow, series, false)?;
            }
            let sure_to = series.iter().map(|s| doubt(s)).fold(0.0, f64::max);
            self.watch.tell(ProfileProgress::Round { rounds, sure_to });
            let sure = series.iter().all(|s| doubt(s) <= self.options.confidence);
            if rounds >= self.options.rounds && (sure || start.elapsed() >= budget) {
                break;
            }
        }
        Ok(())
    }

    /// Measures the fixed time of a stage and of its host: that of an action of a layer that
    /// computes nothing.
    fn idle(&self) -> Result<(PerKind, PerKind), Error> {
        let model = Sequential::new().layers("idle", 2, |_: &nn::Path<'_>, _| {
            nn::func(Tensor::shallow_clone)
        });
        let device = self.plan.device;
        let plan = Plan::new(&model, device, 0)?.with_precision(self.plan.precision);
        let input = Tensor::f_zeros([1, 8], (tch::Kind::Float, device))?;
        let sample = Sample::new(input.f_set_requires_grad(true)?);
        let mut chain = Chain::build(&plan, all(&plan), None)?;
        let flow = Flow::new(&sample, 1)?;
        let mut series = vec![LayerSeries::default(); chain.len()];
        for number in 0..IDLE_ROUNDS {
            round(&mut chain, &flow, &mut series, number == 0)?;
        }
        let host = &series[1].host;
        Ok((
            ActionKind::ALL.map(|kind| series[1].of(kind).median()),
            ActionKind::ALL.map(|kind| host[kind as usize].quartiles().0),
        ))
    }

    /// Sets up this thread like a stage's.
    fn prepare_thread(&self) -> Result<(), TorchError> {
        prepare_thread(self.plan.device, self.threads)?;
        self.options.kernels.set_here(self.plan.device)
    }

    /// Repeats the measuring thread's work until told to stop.
    fn keep_busy(&self, ready: Sender<()>, stop: &AtomicBool) {
        let prepared = self.prepare_thread().is_ok();
        let built = caught(|| Ok(Chain::build(&self.plan, all(&self.plan), self.loss())?));
        // If the measuring thread died nobody listens, and `stop` is set soon.
        let _ = ready.send(());
        drop(ready);
        // A failure here occurs on the measuring thread too, which reports it.
        let (true, Ok(mut chain), Ok(flows)) = (prepared, built, self.flows()) else {
            return;
        };
        if self.options.brief {
            // The last step is waited for, so keep steps short.
            chain.hurry_from(Instant::now());
        }
        let mut ignore = |_, _, _, _| {};
        // With `brief`, time may not suffice for the larger sizes.
        let most = if self.options.brief { 2 } else { flows.len() };
        for flow in flows.iter().take(most).cycle() {
            for way in [Way::Joint, Way::Halves, Way::Again] {
                let step = caught(|| Ok(chain.step(way, flow, &mut ignore)?));
                if step.is_err() || stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }
}

/// Tells the parallel threads to stop, when dropped.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn no_thread(error: &std::io::Error) -> Error {
    Error::Build(anyhow::anyhow!(
        "cannot start a thread to measure on: {error}"
    ))
}

fn all(plan: &Plan) -> Range<usize> {
    0..plan.layers.len()
}

pub(super) fn largest(sizes: &[usize]) -> usize {
    let places = sizes.iter().enumerate();
    places
        .max_by_key(|(_, size)| **size)
        .map_or(0, |(at, _)| at)
}

/// Runs each way once.
pub(super) fn round(
    chain: &mut Chain,
    flow: &Flow,
    series: &mut [LayerSeries],
    warm_up: bool,
) -> Result<Flow, Error> {
    let mut out = Flow::default();
    for way in [Way::Joint, Way::Halves, Way::Again] {
        out = chain.step(way, flow, &mut |layer, kind, first, took| {
            // If everything is recomputed, forwards and backwards are not the plain ones.
            if way == Way::Again && kind != ActionKind::Recompute {
                return;
            }
            let layer = &mut series[layer];
            if let Some(told) = took.told {
                let host = &mut layer.host[kind as usize];
                match (warm_up, first) {
                    (true, _) => host.warm_up(told, false, first),
                    (false, false) => host.push(told, false),
                    (false, true) => {}
                }
            }
            let series = &mut layer.kinds[kind as usize];
            if let Some(told) = took.told.filter(|_| !warm_up && !first) {
                layer.telling.told += told;
                layer.telling.done += took.micros;
            }
            if warm_up {
                series.warm_up(took.micros, took.disturbed, first);
            } else if !first {
                series.push(took.micros, took.disturbed);
            }
        })?;
    }
    Ok(out)
}

/// Uncertainty of the sum of all layers' forwards and backwards, as a share of the sum: half of the
/// 95 % interval of the true medians.
pub(super) fn doubt(series: &[LayerSeries]) -> f64 {
    let each = series
        .iter()
        .flat_map(|layer| [ActionKind::Forward, ActionKind::Backward].map(|kind| layer.of(kind)));
    let (mut total, mut squares) = (0.0, 0.0);
    for series in each {
        total += series.median();
        squares += series.half_width().powi(2);
    }
    if total > 0.0 {
        squares.sqrt() / total
    } else {
        0.0
    }
}

/// Default time budget per layer.
pub(super) const BUDGET: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::tests::with_threads;

    /// All threads once met at a barrier, where the started ones waited forever for one that the
    /// system refused.
    #[test]
    fn a_thread_that_is_not_to_be_had_is_an_error_and_nobody_waits_for_it() {
        let linear = |p: &nn::Path<'_>, _| nn::linear(p, 4, 4, nn::LinearConfig::default());
        let model = Sequential::new().layers("l", 2, linear);
        let input = Tensor::ones([4, 4], (tch::Kind::Float, tch::Device::Cpu));
        let options = ProfileOptions::default();
        for given in 0..3 {
            let job = MeasureTask {
                plan: Plan::new(&model, tch::Device::Cpu, 0).unwrap(),
                sample: Sample::new(input.shallow_clone()),
                options: &options,
                sizes: &[4],
                threads: 1,
                watch: Watch(&|_| ()),
                beside: 2,
            };
            let error = with_threads(given, || job.run()).unwrap_err().to_string();
            assert!(error.contains("cannot start a thread"), "{given}: {error}");
        }
    }
}
