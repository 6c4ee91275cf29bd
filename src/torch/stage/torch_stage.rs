//! The stage type that the engine runs.

use std::rc::Rc;
use std::sync::Arc;

use gpipe_partitioner::{Action, ActionKind, MicroId, StageId};

use super::exchange::{Copies, Sums};
use super::graph_audit::GraphUse;
use super::graphs::Graphs;
use super::lost_device;
use super::meter::{DeviceMeter, StageMeter, StepMemory};
use super::optimizers::Optimizers;
use super::outer::Outer;
use super::passes::Passes;
use super::spec::StageSpec;
use crate::caught;
use crate::error::TorchError;
use crate::fail_point::fail_point;
use crate::memory::Scope;
use crate::out_of_memory::OutOfMemory;
use crate::step::StepSettings;
use crate::streams::{DeviceStreams, InTransit, Route};
use crate::values::Values;
use gpipe_engine::{ActivationHint, Observer, Phase, Stage, StageError};

/// Consecutive layers on one device.
#[derive(Debug)]
pub(crate) struct TorchStage {
    number: usize,
    /// Streams of its thread, shared with the thread's other stages.
    streams: Rc<DeviceStreams>,
    route: Route,
    copies: Copies,
    /// Settings of the current step.
    settings: Option<Arc<StepSettings>>,
    passes: Passes,
    optimizers: Optimizers,
    /// Indices of the parameters changed by the current or last update.
    updating: Vec<usize>,
    /// State of the outer step, if replicas train alone.
    outer: Outer,
    meter: Option<StageMeter>,
}

impl TorchStage {
    /// Builds the stage's layers on its device, on the thread that will run them.
    pub(crate) fn build(spec: &StageSpec, streams: &Rc<DeviceStreams>) -> anyhow::Result<Self> {
        let meter = spec.meter.as_ref().map(DeviceMeter::stage).transpose()?;
        Ok(Self {
            number: spec.number,
            streams: Rc::clone(streams),
            route: spec.route.clone(),
            copies: spec.copies.clone(),
            settings: None,
            passes: spec.passes(streams, meter.as_ref())?,
            optimizers: Optimizers::new(Rc::clone(streams)),
            updating: Vec::new(),
            outer: Outer::default(),
            meter,
        })
    }

    /// The replica of the pipeline that it is in.
    pub(crate) fn replica(&self) -> usize {
        self.copies.replica
    }

    /// The streams of its thread.
    pub(crate) fn streams(&self) -> &DeviceStreams {
        &self.streams
    }

    /// Returns the streams, shared.
    pub(crate) fn shared_streams(&self) -> Rc<DeviceStreams> {
        Rc::clone(&self.streams)
    }

    /// The skips from earlier stages and to later ones, by their numbers.
    pub(crate) fn skip_ends(&self) -> (&[usize], &[usize]) {
        let skips = self.passes.compute().layers().skips();
        (skips.incoming(), skips.outgoing())
    }

    /// Returns whether it computes the loss.
    pub(crate) fn has_loss(&self) -> bool {
        self.passes.has_loss()
    }

    /// Returns whether its backward returns the gradients of its main inputs.
    pub(crate) fn sends_gradient(&self) -> bool {
        let wanted = |settings: &Arc<StepSettings>| settings.mode.wants_input_gradient();
        !self.passes.compute().is_first() || self.settings.as_ref().is_some_and(wanted)
    }

    /// Sets whether all of its layers recompute, from the next step on.
    pub(crate) fn recompute_all(&mut self, redo: bool) {
        let compute = self.passes.compute_mut();
        compute.segments_mut().recompute_all(redo);
    }

    /// Returns the use of CUDA graphs; `None` unless they were requested.
    pub(crate) fn graph_use(&self) -> Option<GraphUse> {
        self.passes.graphs().map(Graphs::usage)
    }

    /// The memory of the step that just ended; none unless it is measured.
    pub(crate) fn memory(&self) -> anyhow::Result<Option<StepMemory>> {
        let memory = self.meter.as_ref().map(StageMeter::step_memory);
        Ok(memory.transpose()?)
    }

    // Parts, for operations between steps.

    /// Returns the number of the stage.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Indices of the parameters changed by the current or last update.
    pub(super) fn updating(&self) -> &[usize] {
        &self.updating
    }

    pub(super) fn outer(&self) -> &Outer {
        &self.outer
    }

    pub(super) fn outer_mut(&mut self) -> &mut Outer {
        &mut self.outer
    }

    pub(super) fn set_updating(&mut self, places: Vec<usize>) {
        self.updating = places;
    }

    pub(super) fn passes(&self) -> &Passes {
        &self.passes
    }

    pub(super) fn passes_mut(&mut self) -> &mut Passes {
        &mut self.passes
    }

    /// Returns the parts that updates need.
    pub(super) fn update_parts(&mut self) -> (&mut Passes, &mut Optimizers) {
        (&mut self.passes, &mut self.optimizers)
    }

    /// Charges this thread's allocations to the stage while the result lives.
    pub(super) fn count_memory(&self) -> Option<Scope> {
        self.meter.as_ref().and_then(StageMeter::enter)
    }

    // Actions.

    fn settings(&self) -> anyhow::Result<Arc<StepSettings>> {
        let settings = self.settings.clone();
        settings.ok_or_else(|| anyhow::anyhow!("an action outside of a step"))
    }

    /// Records that no layer is running.
    fn outside(&self) {
        self.passes.compute().layers().progress().outside();
    }

    fn begin_step(&mut self, step: &StepSettings) -> anyhow::Result<()> {
        self.streams.begin_task(step.caller_events.as_deref())?;
        self.passes.begin_step(&step.mode)?;
        if let Some(meter) = &mut self.meter {
            meter.begin_step()?;
        }
        Ok(())
    }

    /// Runs an action of a plain stage: without streams, offload and memory meter.
    fn run_on_host(
        &mut self,
        action: Action,
        inputs: Vec<InTransit>,
    ) -> anyhow::Result<Vec<InTransit>> {
        let settings = self.settings()?;
        self.outside();
        let inputs = inputs.into_iter();
        let inputs = inputs.map(|input| self.here(input.values));
        let inputs = inputs.collect::<Result<_, TorchError>>()?;
        let outputs = self.passes.run(action, inputs, &settings)?;
        Ok(outputs.into_iter().map(InTransit::from).collect())
    }

    /// Runs the measured part of an action.
    fn act_on_streams(
        &mut self,
        action: Action,
        inputs: Vec<InTransit>,
    ) -> anyhow::Result<Vec<InTransit>> {
        let settings = self.settings()?;
        self.outside();
        let inputs: Vec<Values> = inputs
            .into_iter()
            .map(|input| self.here(self.streams.receive(input)?))
            .collect::<Result<_, TorchError>>()?;
        let begin = self.streams.begin_action()?;
        let outputs = self.passes.run(action, inputs, &settings)?;
        Ok(self.streams.send(action, begin, outputs, &self.route)?)
    }

    /// Runs an action on the device's streams, if there are any, and measures it, if that is
    /// asked for.
    fn run_on_streams(
        &mut self,
        action: Action,
        inputs: Vec<InTransit>,
    ) -> anyhow::Result<Vec<InTransit>> {
        let measured = self.meter.as_mut().map(StageMeter::begin_action);
        let measured = measured.transpose()?;
        let outputs = caught(|| self.act_on_streams(action, inputs))?;
        if let (Some(meter), Some(measured)) = (&mut self.meter, measured) {
            let gradients = self.passes.accumulator().bytes();
            meter.end_action(action.kind, measured, gradients)?;
        }
        self.streams.end_action()?;
        if let Some(meter) = &mut self.meter {
            meter.between_actions()?;
        }
        Ok(outputs)
    }

    /// The part of an exchange that can fail.
    fn exchange_on_streams(
        &mut self,
        round: usize,
        from: Vec<InTransit>,
    ) -> anyhow::Result<Vec<InTransit>> {
        let from = from.into_iter();
        let from = from.map(|one| self.here(self.streams.receive(one)?));
        let from = from.collect::<Result<_, TorchError>>()?;
        let outputs = self.passes.exchange(round, from)?;
        Ok((self.streams).send_to_copies(outputs, &self.copies.other_places())?)
    }

    /// Moves received values to the stage's device if needed.
    fn here(&self, values: Values) -> Result<Values, TorchError> {
        let device = self.passes.compute().layers().device();
        if values.present().all(|tensor| tensor.device() == device) {
            return Ok(values);
        }
        values.try_move(|tensor| {
            if tensor.device() == device {
                return Ok(tensor);
            }
            let here = tch::no_grad(|| tensor.f_to_device(device))?;
            Ok(here.f_set_requires_grad(tensor.requires_grad())?)
        })
    }

    /// Adds the known cause to an action's error.
    fn explain(&self, action: Action, error: anyhow::Error) -> anyhow::Error {
        let layers = self.passes.compute().layers();
        let error = OutOfMemory::explain(layers.device(), error);
        let error = layers.precision().explain(layers.device(), error);
        self.explain_loss(Phase::Action(action.kind), Some(action.micro), error)
    }

    /// Adds to an error, if the device has failed for good, that it has.
    fn explain_loss(
        &self,
        action: Phase,
        micro: Option<MicroId>,
        error: anyhow::Error,
    ) -> anyhow::Error {
        let at = StageError {
            stage: StageId(self.number),
            replica: None,
            layer: self.layer(),
            micro,
            action,
            source: anyhow::anyhow!("an error of its device"),
        };
        self.streams.explain_loss(at, error)
    }

    fn run_action(
        &mut self,
        action: Action,
        inputs: Vec<InTransit>,
    ) -> anyhow::Result<Vec<InTransit>> {
        if self.meter.is_none() && !self.passes.offloads() && self.streams.is_idle() {
            let done = caught(|| self.run_on_host(action, inputs));
            return done.map_err(|error| self.explain(action, error));
        }
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = streams
            .on_accelerator()
            .map(|_| lost_device::acting(action));
        let done = self.run_on_streams(action, inputs);
        done.map_err(|error| self.explain(action, error))
    }

    /// Leaks what may be page-locked; see [`lost_device`].
    fn leak(&mut self) {
        self.passes.leak();
        self.optimizers.leak();
    }
}

impl Stage for TorchStage {
    type Value = InTransit;
    type Step = StepSettings;

    fn begin(&mut self, step: &Arc<StepSettings>) -> anyhow::Result<()> {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = self.acting(c"the begin of the step");
        self.outside();
        self.settings = Some(Arc::clone(step));
        let begun = self.begin_step(step);
        begun.map_err(|error| {
            let device = self.passes.compute().layers().device();
            let error = OutOfMemory::explain(device, error);
            self.explain_loss(Phase::Begin, None, error)
        })
    }

    fn activation_hint(&mut self, hint: ActivationHint) -> anyhow::Result<()> {
        if let ActivationHint::Recompute(_) = hint {
            return Ok(self.passes.take_hint(hint)?);
        }
        if !self.passes.offloads() {
            return Ok(());
        }
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = self.acting(c"offload");
        self.outside();
        let counted = self.count_memory();
        let begun = caught(|| Ok(self.passes.take_hint(hint)?));
        drop(counted);
        begun.map_err(|error| self.explain(hint.consumer(), error))
    }

    fn run(&mut self, action: Action, inputs: Vec<InTransit>) -> anyhow::Result<Vec<InTransit>> {
        let passes = |action: Action| match action.kind {
            ActionKind::Forward => fail_point("forward"),
            _ => fail_point("backward"),
        };
        passes(action);
        let done = self.run_action(action, inputs);
        passes(action);
        done
    }

    fn exchange(&mut self, round: usize, from: Vec<InTransit>) -> anyhow::Result<Vec<InTransit>> {
        fail_point("exchange");
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = self.acting(c"the exchange of gradients");
        self.outside();
        let counted = self.count_memory();
        let done = caught(|| self.exchange_on_streams(round, from));
        drop(counted);
        fail_point("exchange");
        done.map_err(|error| {
            let device = self.passes.compute().layers().device();
            let error = OutOfMemory::explain(device, error);
            self.explain_loss(Phase::Exchange(round), None, error)
        })
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = self.acting(c"the end of the step");
        self.settings = None;
        self.passes.end_step();
        self.outside();
        let finished = match self.copies.sums {
            Sums::Alone => self.passes.accumulator_mut().finish_leaves(),
            Sums::InAll | Sums::AtOwners => Ok(()),
        };
        let ended = finished.and_then(|()| {
            streams.release_offloaded()?;
            Ok(streams.end_task()?)
        });
        ended.map_err(|error| self.explain_loss(Phase::End, None, error))
    }

    fn abort(&mut self) {
        let streams = self.shared_streams();
        let _shared = streams.submit_scope();
        let _named = self.acting(c"the step that is undone");
        self.settings = None;
        self.outside();
        if streams.is_lost() {
            return self.leak();
        }
        self.passes.abort();
        // An error here could not be reported: the step has failed already.
        let _ = streams.release_offloaded();
        self.passes.undo_step();
    }

    fn layer(&self) -> Option<String> {
        self.passes.compute().layers().progress().name()
    }

    fn observer(&self) -> Option<Observer> {
        let progress = self.passes.compute().layers().progress().clone();
        Some(Box::new(move || progress.name()))
    }
}

impl Drop for TorchStage {
    fn drop(&mut self) {
        if self.streams.is_lost() {
            self.leak();
        }
    }
}
