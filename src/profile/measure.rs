//! Rounds of measurements until the numbers are sure enough or time is up.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpipe_partitioner::ActionKind;
use tch::{Tensor, nn};

use super::alike::{self, Looks};
use super::chain::{Chain, Plan, Way};
use super::flow::Flow;
use super::measurements::{LayerSeries, Measurements};
use super::warm_up::MOST_IN_BRIEF;
use super::watch::{ProfileProgress, Watch};
use super::{ProfileOptions, Sample};
use crate::error::Error;
use crate::torch::threads::spawn;
use crate::torch::{LossFn, Sequential, TorchError, caught, prepare_thread};

/// Rounds over layers that do nothing.
const IDLE_ROUNDS: usize = 20;

/// A number for each kind of action.
type PerKind = [f64; ActionKind::ALL.len()];

/// What a measuring thread has to do.
#[derive(Debug, Clone)]
pub(super) struct MeasureTask<'a> {
    pub(super) plan: Plan,
    pub(super) sample: Sample,
    pub(super) options: &'a ProfileOptions,
    pub(super) sizes: &'a [usize],
    pub(super) threads: usize,
    pub(super) watch: Watch<'a>,
    /// Threads that do the same beside, as the other stages do in training.
    pub(super) beside: usize,
}

impl MeasureTask<'_> {
    /// Leaves out the sizes for which there was no time with all cores.
    pub(super) fn no_larger_than(self, alone: Option<&(usize, Measurements)>) -> Self {
        let most = alone.map_or(self.sizes.len(), |(_, own)| own.series.len());
        Self {
            sizes: &self.sizes[..most],
            ..self
        }
    }

    /// Measures on a thread of its own, which is set up as a stage's is.
    ///
    /// The others say when they are ready and wait for nobody, so that nothing hangs where
    /// one of all these threads could not be started or died.
    pub(super) fn run(self) -> Result<Measurements, Error> {
        let stop = AtomicBool::new(false);
        let (ready, others) = channel();
        thread::scope(|scope| {
            // Also where a thread is not to be had: the scope waits for those that are.
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
                // Ends early where one of the others is gone.
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
                && alike::taken_for_known(looks, &known, chain, flows, &mut outcome)?
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
        // Of sizes for which there was no time nothing is known.
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

    /// Measures a chain; `flows` are then what leaves it.
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

    /// What a stage takes besides its layers, and its host: an action of a layer that does
    /// nothing.
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

    /// Sets what a thread of a stage has, on this one.
    fn prepare_thread(&self) -> Result<(), TorchError> {
        prepare_thread(self.plan.device, self.threads)?;
        self.options.kernels.set_here(self.plan.device)
    }

    /// Does what the measuring thread does, until that is done.
    fn keep_busy(&self, ready: Sender<()>, stop: &AtomicBool) {
        let prepared = self.prepare_thread().is_ok();
        let built = caught(|| Ok(Chain::build(&self.plan, all(&self.plan), self.loss())?));
        // Where the measuring thread is gone nobody listens, and `stop` is set soon.
        let _ = ready.send(());
        drop(ready);
        // What fails here fails on the measuring thread too, which tells.
        let (true, Ok(mut chain), Ok(flows)) = (prepared, built, self.flows()) else {
            return;
        };
        if self.options.brief {
            // The last step is waited for, however little is measured.
            chain.hurry_from(Instant::now());
        }
        let mut ignore = |_, _, _, _| {};
        // In brief the larger sizes may be those for which there is no time.
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

/// Tells when it goes that there is nothing left to do.
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

/// Each way once.
pub(super) fn round(
    chain: &mut Chain,
    flow: &Flow,
    series: &mut [LayerSeries],
    warm_up: bool,
) -> Result<Flow, Error> {
    let mut out = Flow::default();
    for way in [Way::Joint, Way::Halves, Way::Again] {
        out = chain.step(way, flow, &mut |layer, kind, first, took| {
            // Where everything is recomputed, forwards and backwards are not the plain ones.
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

/// How unsure the sum of all layers' forwards and backwards is, as a share of it:
/// half of the interval that has the true medians with 95 %.
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

/// The time that a layer may take by default.
pub(super) const BUDGET: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::threads::tests::with_threads;

    /// All threads met at a barrier, at which those that had been started waited for ever for
    /// one that the system did not give.
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
