//! `F`, and the forward that `R` or a backward runs once more.

use gpipe_partitioner::MicroId;
use tch::Tensor;

use super::TorchStage;
use super::activations::{Flight, Held, Inputs, Live, Transit};
use super::compute::add_roots;
use super::graphs::Start;
use super::segment::Which;
use super::writes::{changed, watch};
use crate::torch::error::TorchError;
use crate::torch::ffi::{self, RandomScope};
use crate::torch::gradients::finite;
use crate::torch::rng;
use crate::torch::step::{Mode, StepSettings};
use crate::torch::values::{Values, hand_over};

/// What is the same for all layers of one pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) micro: MicroId,
    pub(super) settings: &'a StepSettings,
    pub(super) recomputing: bool,
    /// Whether the same inputs will be needed for another run.
    pub(super) again: bool,
    /// Whether what autograd saves goes to the host's memory, in pieces of at least so
    /// many bytes.
    pub(super) stows: Option<u64>,
}

impl TorchStage {
    /// `F` in training: leaves a flight behind.
    pub(super) fn forward(
        &mut self,
        micro: MicroId,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let (mut values, mut transit, targets) = self.unpack(inputs);
        let pass = Pass {
            micro,
            settings,
            recomputing: false,
            again: false,
            stows: self.stows(micro),
        };
        let redo = self.recompute.applies(micro, settings.mode.micro_batches());
        let mut flight = Flight::default();
        for number in 0..self.segments.len() {
            let held;
            let mut inputs = self.segments[number].take_inputs(values, &mut transit);
            let redo = redo && self.segments[number].recompute;
            if redo {
                inputs.before = self.before(&self.segments[number].layers)?;
            }
            // Where it will run again, the graph is made and dropped: libtorch chooses
            // kernels by whether a tensor requires a gradient (`matmul` folds batches
            // by it), so that a run without one may differ in the last bits.
            let run = Pass {
                again: redo,
                stows: pass.stows.filter(|_| !redo),
                ..pass
            };
            let (passed, inputs) = match self.start(inputs, run)? {
                Start::Replayed(passed, slot) => (passed, Err(slot)),
                Start::Eager(inputs) => {
                    let passed = self.heeding(|stage| {
                        stage.run_segment(Which::Segment(number), &inputs, true, run)
                    })?;
                    (passed, Ok(inputs))
                }
            };
            transit.extend(passed.skips);
            (values, held) = match (passed.live, inputs) {
                (_, Err(slot)) => (passed.outputs, Held::Slot(slot)),
                (Some(live), _) if !redo => (passed.outputs, Held::Live(live)),
                (_, Ok(inputs)) => {
                    let outputs = passed.outputs.try_move(|tensor| hand_over(&tensor))?;
                    let held = match pass.stows {
                        Some(least) => self.stow(inputs, least)?,
                        None => Held::Inputs(inputs),
                    };
                    (outputs, held)
                }
            };
            flight.segments.push(held);
        }
        let outputs = if self.last {
            vec![self.loss(values, &targets, &mut flight, pass)?]
        } else {
            self.send(values, &mut flight, &mut transit)?
        };
        self.flights.insert(micro, flight);
        Ok(outputs)
    }

    /// `F` in inference: no graph.
    pub(super) fn infer(
        &mut self,
        micro: MicroId,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let (values, mut transit, _) = self.unpack(inputs);
        let pass = Pass {
            micro,
            settings,
            recomputing: false,
            again: false,
            stows: None,
        };
        let inputs = self.whole.take_inputs(values, &mut transit);
        let passed = self.run_segment(Which::Whole, &inputs, false, pass)?;
        transit.extend(passed.skips);
        let mut sent = vec![passed.outputs];
        sent.extend(self.sent_skips(&mut transit));
        Ok(sent)
    }

    /// What arrived: the main values, those of skips, and on the last stage in
    /// training the targets.
    fn unpack(&self, inputs: Vec<Values>) -> (Values, Transit, Values) {
        let mut inputs = inputs.into_iter();
        let values = inputs.next().unwrap_or_default();
        let mut transit = Transit::new();
        for &skip in &self.incoming {
            let value = inputs.next().unwrap_or_default();
            transit.insert(skip, value.into_iter().next().flatten());
        }
        (values, transit, inputs.next().unwrap_or_default())
    }

    /// What leaves the stage beside the loss: the outputs, then a value a skip, all
    /// detached.
    fn send(
        &self,
        values: Values,
        flight: &mut Flight,
        transit: &mut Transit,
    ) -> anyhow::Result<Vec<Values>> {
        if let Some(Held::Live(live)) = flight.segments.last_mut() {
            add_roots(&mut live.graph, &values)?;
        }
        let mut sent = vec![values.try_move(|tensor| hand_over(&tensor))?];
        sent.extend(self.sent_skips(transit));
        Ok(sent)
    }

    fn sent_skips(&self, transit: &mut Transit) -> Vec<Values> {
        let values = self.outgoing.iter().map(|skip| transit.remove(skip));
        values
            .map(|value| [value.flatten()].into_iter().collect())
            .collect()
    }

    /// Makes the graph of a segment that kept its inputs: the forward once more,
    /// with what that found in its buffers, and without effects on them.
    pub(super) fn recompute(
        &mut self,
        number: usize,
        inputs: &Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<Live> {
        let layers = self.segments[number].layers.clone();
        let passed = self.as_before(&layers, &inputs.before, |stage| {
            stage.run_segment(Which::Segment(number), inputs, true, pass)
        })?;
        let Some(mut live) = passed.live else {
            anyhow::bail!("a segment was run without its graph");
        };
        if number + 1 == self.segments.len() {
            add_roots(&mut live.graph, &passed.outputs)?;
        }
        Ok(live)
    }

    /// What the last stage adds to its forward: the loss becomes the graph's root.
    /// It gets a graph of its own where the last segment has none, so that the
    /// user's function is called once a micro-batch, recomputing or not.
    fn loss(
        &mut self,
        outputs: Values,
        targets: &Values,
        flight: &mut Flight,
        pass: Pass<'_>,
    ) -> anyhow::Result<Values> {
        let Mode::Train { loss, shares, .. } = &pass.settings.mode else {
            anyhow::bail!("a loss in inference");
        };
        self.running.loss();
        let seed = rng::pass_seed(self.loss_seed, pass.settings.step, pass.micro.index());
        let _random = RandomScope::open(seed)?;
        let apart = !matches!(flight.segments.last(), Some(Held::Live(_)));
        let (live, outputs) = if let Some(Held::Live(live)) = flight.segments.last_mut() {
            (live, outputs)
        } else {
            let live = flight.loss.insert(Live::new()?);
            let outputs = live.enter(outputs)?;
            (live, outputs)
        };
        let autocast = self.precision.scope(self.device)?;
        // Whether it writes to what it is given is found out in its first run, on copies.
        let copies = self.loss_writes != Some(false);
        // Without skips outputs are nobody else's, but for parameters and buffers.
        let shared = if copies && self.skips.is_empty() {
            self.own_among(&outputs)?
        } else {
            vec![copies; outputs.len()]
        };
        let outputs = given(outputs, &shared)?;
        let targets = given(targets.shallow_clone(), &vec![copies; targets.len()])?;
        let watched = (watch(outputs.present())?, watch(targets.present())?);
        let saved_pool = Self::saves_loss(live, &targets)?;
        let loss = loss.loss(&outputs, &targets)?.checked()?;
        drop((saved_pool, autocast));
        let wrote = (changed(&watched.0)?, changed(&watched.1)?);
        if let Some(graphs) = &self.graphs {
            graphs.watch_loss(wrote.0, apart)?;
        }
        self.loss_writes = Some(self.loss_writes == Some(true) || wrote.0 || wrote.1);
        if wrote.0 {
            self.copy_inputs();
        }
        anyhow::ensure!(
            copies || !wrote.1,
            "the loss function changed a target in place, which it had not done before; targets \
             will be copied from now on"
        );
        let own = !copies && wrote.0 && self.own_among(&outputs)?.contains(&true);
        anyhow::ensure!(
            !own,
            "the loss function changed a parameter or buffer in place, which it had not done \
             before; it will be copied from now on"
        );
        self.sweep(live)?;
        let value = if loss.counts() {
            let share = shares.get(pass.micro.index()).copied().unwrap_or_default();
            let seed = loss.reduction.seed(share) * pass.settings.mode.loss_scale();
            live.graph.loss(&loss.value, seed, self.scale.as_ref())?;
            live.graph.mark(&loss.value, self.layers.len())?;
            if pass.settings.mode.fails_on_non_finite() {
                anyhow::ensure!(finite(&loss.value)?, "the loss is not finite");
            }
            // The caller keeps it to the end of the step. A copy: libtorch's own mean of
            // squares, say, is one number at the beginning of a whole batch's memory.
            ffi::copy(&loss.value.f_detach()?)?
        } else {
            // A root without a gradient: 0 times NaN would be NaN, in the loss and on the
            // way back.
            live.graph.roots(std::iter::once(Some(&loss.value)))?;
            let options = (loss.value.kind(), loss.value.device());
            Tensor::f_zeros([], options)?
        };
        self.running.nothing();
        let reduction = loss.reduction.to_tensor();
        Ok([Some(value), reduction].into_iter().collect())
    }
}

/// What the loss function is given: these, or copies of the shared ones.
fn given(values: Values, shared: &[bool]) -> Result<Values, TorchError> {
    if !shared.contains(&true) {
        return Ok(values);
    }
    let copied = ffi::copies(values.iter(), shared)?;
    Ok(copied.into_iter().collect())
}
