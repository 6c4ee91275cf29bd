//! A stage: consecutive layers on one device, driven by the engine's actions.
//!
//! The life of one micro-batch here: `F` turns what was received into the
//! beginning of a graph, runs the layers, and sends the outputs on, detached;
//! the graph waits as the micro-batch's *flight*. `B` is given the gradients of
//! those outputs, runs autograd once, accumulates into the parameters and sends
//! back the gradients that arrived at the inputs; `I` and `W` do the same in two
//! steps. Layers that recompute leave only their inputs in the flight, and `R` (or
//! the backward itself) makes the graph. The last stage's outputs are the loss,
//! which brings its own gradient: the micro-batch's share of the mini-batch.

mod accumulator;
mod activations;
mod backward;
mod buffers;
mod compute;
mod forward;
mod graphs;
mod lost_device;
mod meter;
mod offload;
mod optimizers;
mod own_tensors;
mod passes;
mod portable;
mod progress;
mod segment;
mod skip_routes;
mod writes;

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use gpipe_partitioner::{Action, ActionKind, MicroId};
use parking_lot::Mutex;
use tch::{Device, Tensor};

use super::error::TorchError;
use super::optim::Groups;
use super::out_of_memory::OutOfMemory;
use super::precision::Precision;
use super::recompute::Recompute;
use super::rng;
use super::sequential::{BuiltLayer, LayerBuilder, bytes};
use super::skips::Skip;
use super::step::{Mode, StepSettings};
use super::step_state::StepStates;
use super::streams::{DeviceStreams, InTransit, Route};
use super::values::Values;
use crate::engine::{Observer, OffloadHint, Phase, Stage};
use accumulator::Accumulator;
use activations::{Flight, Half};
use buffers::Moves;
pub use graphs::GraphUse;
pub(crate) use graphs::Graphing;
use graphs::Graphs;
use meter::StageMeter;
pub(crate) use meter::{DeviceMeter, MemoryLevels, StepMemory};
use optimizers::Optimizers;
pub(crate) use portable::{Portable, Role};
use progress::Running;
use segment::Segment;

/// What a stage is made from.
#[derive(Debug, Clone)]
pub(crate) struct StageSpec {
    /// Its number, from 0.
    pub(crate) number: usize,
    pub(crate) last: bool,
    pub(crate) device: Device,
    pub(crate) seed: u64,
    /// Its layers, and which of the model's they are.
    pub(crate) layers: Vec<LayerBuilder>,
    pub(crate) range: Range<usize>,
    /// All skips of the model.
    pub(crate) skips: Arc<[Skip]>,
    pub(crate) recompute: Recompute,
    pub(crate) precision: Precision,
    /// Where its activations are counted, where that is asked for.
    pub(crate) meter: Option<DeviceMeter>,
    /// Where what it sends goes.
    pub(crate) route: Route,
    /// Whether its passes are captured and replayed.
    pub(crate) graphing: Graphing,
}

/// Consecutive layers on one device.
#[derive(Debug)]
pub(crate) struct TorchStage {
    number: usize,
    device: Device,
    /// Its thread's streams, shared with the thread's other stages.
    streams: Rc<DeviceStreams>,
    route: Route,
    first: bool,
    last: bool,
    layers: Vec<BuiltLayer>,
    /// The number of the first layer in the model.
    first_layer: usize,
    segments: Vec<Segment>,
    whole: Segment,
    recompute: Recompute,
    precision: Precision,
    skips: Arc<[Skip]>,
    /// Skips from earlier stages, and to later ones.
    incoming: Vec<usize>,
    outgoing: Vec<usize>,
    /// The loss function's random source, as each layer has one.
    loss_seed: u64,
    /// Whether the loss function writes to what it is given; unknown before its first run,
    /// which is on copies.
    loss_writes: Option<bool>,
    accumulator: Accumulator,
    buffers: Vec<(String, Tensor)>,
    /// Its parameters and buffers.
    own: Vec<Tensor>,
    /// Where those of each layer are.
    layer_buffers: Vec<Range<usize>>,
    moves: Moves,
    flights: HashMap<MicroId, Flight>,
    /// The micro-batch whose backward the device does directly after its forward.
    directly: Option<MicroId>,
    settings: Option<Arc<StepSettings>>,
    /// Buffers (batch-norm statistics) as they were before the step.
    saved_buffers: Vec<Tensor>,
    /// What layers have gathered in a step that is not yet certain to count.
    step_states: StepStates,
    /// What the loss is multiplied with, where that is on the stage's device.
    scale: Option<Tensor>,
    optimizers: Optimizers,
    meter: Option<StageMeter>,
    /// Where passes are to be captured and replayed.
    graphs: Option<Graphs>,
    running: Running,
}

impl TorchStage {
    /// Builds the stage's layers on its device, on the thread that will run them.
    pub(crate) fn build(spec: &StageSpec, streams: &Rc<DeviceStreams>) -> anyhow::Result<Self> {
        let meter = spec.meter.as_ref().map(DeviceMeter::stage).transpose()?;
        let counted = meter.as_ref().and_then(StageMeter::enter);
        let layers: Vec<_> = spec
            .layers
            .iter()
            .map(|layer| layer.build(spec.device, spec.seed))
            .collect::<Result<_, _>>()?;
        drop(counted);
        let running = Running::new(layers.iter().map(|layer| layer.name.clone()));
        let parameters: Vec<_> = layers.iter().flat_map(BuiltLayer::parameters).collect();
        let by_layer: Vec<_> = layers.iter().map(BuiltLayer::buffers).collect();
        let own = parameters.iter().chain(by_layer.iter().flatten());
        let own = own.map(|(_, tensor)| tensor.shallow_clone()).collect();
        let layer_buffers = buffers::places(by_layer.iter().map(Vec::len));
        let stage = Self {
            number: spec.number,
            device: spec.device,
            streams: Rc::clone(streams),
            route: spec.route.clone(),
            first: spec.number == 0,
            last: spec.last,
            layers,
            first_layer: spec.range.start,
            segments: segment::segments(&spec.range, spec.number, &spec.recompute, &spec.skips),
            whole: Segment::whole(&spec.range, &spec.skips),
            recompute: spec.recompute.clone(),
            precision: spec.precision,
            incoming: segment::incoming(&spec.range, &spec.skips),
            outgoing: segment::outgoing(&spec.range, &spec.skips),
            skips: Arc::clone(&spec.skips),
            loss_seed: rng::named_seed(spec.seed, "loss"),
            loss_writes: None,
            accumulator: Accumulator::new(spec.device, Rc::clone(streams), parameters),
            own,
            buffers: by_layer.into_iter().flatten().collect(),
            layer_buffers,
            moves: Moves::default(),
            flights: HashMap::new(),
            directly: None,
            settings: None,
            saved_buffers: Vec::new(),
            step_states: StepStates::default(),
            scale: None,
            optimizers: Optimizers::new(Rc::clone(streams)),
            meter,
            graphs: Graphs::new(&spec.graphing),
            running,
        };
        stage.judge_layers();
        Ok(stage)
    }

    /// The streams of its thread.
    pub(crate) fn streams(&self) -> &DeviceStreams {
        &self.streams
    }

    /// The same, for longer than the stage is looked at.
    pub(crate) fn shared_streams(&self) -> Rc<DeviceStreams> {
        Rc::clone(&self.streams)
    }

    /// The skips from earlier stages and to later ones, by their numbers.
    pub(crate) fn skip_ends(&self) -> (&[usize], &[usize]) {
        (&self.incoming, &self.outgoing)
    }

    /// Whether it computes the loss.
    pub(crate) fn has_loss(&self) -> bool {
        self.last
    }

    /// Whether its backward gives the gradients of its main inputs.
    pub(crate) fn sends_gradient(&self) -> bool {
        let wanted = |settings: &Arc<StepSettings>| settings.mode.wants_input_gradient();
        !self.first || self.settings.as_ref().is_some_and(wanted)
    }

    /// Whether all of its layers recompute, from the next step on.
    pub(crate) fn recompute_all(&mut self, redo: bool) {
        self.recompute = if redo {
            Recompute::Always
        } else {
            Recompute::Never
        };
        for segment in &mut self.segments {
            segment.recompute = redo;
        }
    }

    // Between steps.

    /// The gradients, once what the last step did is certain.
    pub(crate) fn committed(&mut self) -> anyhow::Result<&mut Accumulator> {
        self.commit_step()?;
        Ok(&mut self.accumulator)
    }

    /// The same; where only the device knows whether the last step counts, as the step left
    /// them.
    pub(crate) fn committed_unless_deferred(&mut self) -> anyhow::Result<&mut Accumulator> {
        if self.accumulator.found_inf().is_none() {
            self.commit_step()?;
        }
        Ok(&mut self.accumulator)
    }

    /// The gradients of the step that just ended, alone.
    pub(crate) fn accumulator(&mut self) -> &mut Accumulator {
        &mut self.accumulator
    }

    /// Names and handles of the buffers, by layer and name.
    pub(crate) fn buffers(&mut self) -> anyhow::Result<&[(String, Tensor)]> {
        self.commit_step()?;
        Ok(&self.buffers)
    }

    /// The norms of the step that just ended, with names, where its device alone can find
    /// out whether it counts; see [`Accumulator::defer`].
    pub(crate) fn deferrable_norms(&self) -> anyhow::Result<Option<(Vec<String>, Tensor)>> {
        if self.accumulator.has_previous() || !self.step_states.is_empty() {
            return Ok(None);
        }
        Ok(self.accumulator.named_norms_on_device()?)
    }

    /// What the next losses are multiplied with, on whatever device.
    #[doc(alias = "GradScaler")]
    pub(crate) fn set_loss_scale(&mut self, scale: &Tensor) -> Result<(), TorchError> {
        if self.last {
            self.streams.uses("a loss scale", scale)?;
            self.scale = Some(scale.shallow_clone());
        }
        Ok(())
    }

    /// Gets ready for [`TorchStage::optimize`]; parameters and gradients stay as they are,
    /// also if it fails.
    ///
    /// `alive` is whether the optimizer still is, for when another one is here.
    pub(crate) fn prepare_updates(
        &mut self,
        id: u64,
        alive: &Weak<()>,
        groups: &Groups,
    ) -> anyhow::Result<()> {
        if groups.dampen() {
            self.commit_step()?;
        }
        self.committed_unless_deferred()?;
        let _counted = self.meter.as_ref().and_then(StageMeter::enter);
        let parameters = self.accumulator.parameters();
        let prepared = self.optimizers.prepare((id, alive), groups, parameters);
        prepared.map_err(|error| OutOfMemory::explain(self.device, error.into()))
    }

    /// There will be no update: some stage cannot.
    pub(crate) fn abandon_updates(&mut self, id: u64) {
        self.optimizers.abandon(id);
    }

    /// Applies and clears the accumulated gradients, for which it is prepared.
    pub(crate) fn optimize(&mut self, id: u64, groups: &Groups) -> anyhow::Result<()> {
        let found_inf = self.committed_unless_deferred()?.found_inf();
        let counted = self.meter.as_ref().and_then(StageMeter::enter);
        let parameters = self.accumulator.parameters();
        let optimizers = &mut self.optimizers;
        optimizers.apply(id, groups, parameters, found_inf.as_ref())?;
        // The gradients are used up: what is left to do is to put back buffers if the step
        // does not count.
        if let Some(found_inf) = self.accumulator.take_found_inf() {
            self.undo_buffers_where(&found_inf)?;
            self.commit_step()?;
        }
        drop(counted);
        Ok(())
    }

    /// Copies, in the host's memory, of all that training goes on from.
    pub(crate) fn portable(&mut self, optimizer: u64) -> anyhow::Result<Vec<Portable>> {
        self.commit_step()?;
        self.streams.wait_offloaded()?;
        let state = self.optimizers.get(optimizer);
        portable::snapshot(self.accumulator.parameters(), &self.buffers, state)
    }

    /// Drops gradients, and what an optimizer remembers here.
    pub(crate) fn forget(&mut self, optimizer: u64) -> anyhow::Result<()> {
        self.commit_step()?;
        self.optimizers.forget(optimizer);
        Ok(self.accumulator.zero_grad()?)
    }

    /// Takes what belongs to this stage out of `all` and goes on from it. Types and
    /// shapes have been checked. `alive` is whether the optimizer still is, and `offload`
    /// whether it keeps what it remembers on the host.
    pub(crate) fn adopt_portable(
        &mut self,
        optimizer: u64,
        (alive, offload): (&Weak<()>, bool),
        all: &Mutex<Vec<Portable>>,
    ) -> anyhow::Result<()> {
        let parameters = self.accumulator.parameters();
        let parts = portable::restore(parameters, &self.buffers, all)?;
        let optimizers = &mut self.optimizers;
        optimizers.remember((optimizer, alive), offload, parameters, parts)?;
        Ok(self.streams.release_offloaded()?)
    }

    /// Draws random numbers as a model does that was built with this seed.
    pub(crate) fn reseed(&mut self, seed: u64) {
        for layer in &mut self.layers {
            layer.seed = rng::named_seed(seed, &layer.name);
        }
        self.loss_seed = rng::named_seed(seed, "loss");
    }

    /// What the step that just ended used; `None` where nobody measures.
    pub(crate) fn memory(&mut self) -> anyhow::Result<Option<StepMemory>> {
        let memory = self.meter.as_ref().map(StageMeter::step_memory);
        Ok(memory.transpose()?)
    }

    /// Runs an action and measures it, where that is asked for.
    fn measured<T>(
        &mut self,
        kind: ActionKind,
        run: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let action = self.meter.as_mut().map(StageMeter::begin_action);
        let action = action.transpose()?;
        let result = run(self)?;
        if let (Some(meter), Some(action)) = (&mut self.meter, action) {
            meter.end_action(kind, action, self.accumulator.bytes())?;
        }
        self.streams.end_action()?;
        if let Some(meter) = &mut self.meter {
            meter.between_actions()?;
        }
        Ok(result)
    }

    fn settings(&self) -> anyhow::Result<Arc<StepSettings>> {
        self.settings
            .clone()
            .ok_or_else(|| anyhow::anyhow!("an action outside of a step"))
    }

    /// What arrived, where the stage computes.
    fn receive(&self, in_transit: InTransit) -> Result<Values, TorchError> {
        let values = self.streams.receive(in_transit)?;
        if values
            .present()
            .all(|tensor| tensor.device() == self.device)
        {
            return Ok(values);
        }
        values.try_move(|tensor| {
            if tensor.device() == self.device {
                return Ok(tensor);
            }
            let here = tch::no_grad(|| tensor.f_to_device(self.device))?;
            Ok(here.f_set_requires_grad(tensor.requires_grad())?)
        })
    }

    fn run_action(
        &mut self,
        action: Action,
        inputs: Vec<InTransit>,
    ) -> anyhow::Result<Vec<InTransit>> {
        let settings = self.settings()?;
        self.running.nothing();
        let inputs: Vec<Values> = inputs
            .into_iter()
            .map(|in_transit| self.receive(in_transit))
            .collect::<Result<_, _>>()?;
        let begin = self.streams.begin_action(action, &inputs)?;
        let outputs = self.compute(action, inputs, &settings)?;
        Ok(self.streams.send(action, begin, outputs, &self.route)?)
    }

    fn compute(
        &mut self,
        action: Action,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let micro = action.micro;
        match (action.kind, &settings.mode) {
            (ActionKind::Forward, Mode::Infer) => self.infer(micro, inputs, settings),
            (ActionKind::Forward, Mode::Train { .. }) => self.forward(micro, inputs, settings),
            (ActionKind::Backward, Mode::Train { .. }) => {
                self.backward(Half::Joint, micro, inputs, settings)
            }
            (ActionKind::BackwardInput, Mode::Train { .. }) => {
                self.backward(Half::Input, micro, inputs, settings)
            }
            (ActionKind::BackwardWeight, Mode::Train { .. }) => {
                self.backward_weight(micro, settings)
            }
            (ActionKind::Recompute, Mode::Train { .. }) => self.recompute_ahead(micro, settings),
            (_, Mode::Infer) => anyhow::bail!("no {action} in inference"),
        }
    }
}

impl Stage for TorchStage {
    type Value = InTransit;
    type Step = StepSettings;

    fn begin(&mut self, step: &Arc<StepSettings>) -> anyhow::Result<()> {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        self.running.nothing();
        self.settings = Some(Arc::clone(step));
        let begun = self.begin_step(step);
        begun.map_err(|error| self.explain_loss(Phase::Begin, None, error))
    }

    fn offload_hint(&mut self, hint: OffloadHint) -> anyhow::Result<()> {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        self.running.nothing();
        let begun = super::caught(|| Ok(self.heed_offload_hint(hint)?));
        begun.map_err(|error| {
            let error = OutOfMemory::explain(self.device, error);
            let next = hint.next();
            self.explain_loss(Phase::Action(next.kind), Some(next.micro), error)
        })
    }

    fn run(&mut self, action: Action, inputs: Vec<InTransit>) -> anyhow::Result<Vec<InTransit>> {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = streams
            .on_accelerator()
            .map(|_| lost_device::acting(action));
        let done = self.measured(action.kind, |stage| {
            let done = super::caught(|| stage.run_action(action, inputs));
            done.map_err(|error| {
                let error = OutOfMemory::explain(stage.device, error);
                stage.precision.explain(stage.device, error)
            })
        });
        let at = Phase::Action(action.kind);
        done.map_err(|error| self.explain_loss(at, Some(action.micro), error))
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        self.settings = None;
        self.end_graphs();
        self.running.nothing();
        let ended = self
            .streams
            .release_offloaded()
            .and_then(|()| self.streams.end_task());
        ended.map_err(|error| self.explain_loss(Phase::End, None, error.into()))
    }

    fn abort(&mut self) {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        self.settings = None;
        self.running.nothing();
        if streams.is_lost() {
            return self.leave_behind();
        }
        self.abort_graphs();
        self.flights.clear();
        self.directly = None;
        // Nobody is left to tell.
        let _ = self.streams.release_offloaded();
        self.undo_step();
    }

    fn layer(&self) -> Option<String> {
        self.running.name()
    }

    fn observer(&self) -> Option<Observer> {
        let running = self.running.clone();
        Some(Box::new(move || running.name()))
    }
}
