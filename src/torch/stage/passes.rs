//! `F`, `B`, its halves `I` and `W`, and `R`; and the work of a step before and after them.

use gpipe_partitioner::{Action, ActionKind, MicroId};

use super::accumulator::Accumulator;
use super::activations::{Activations, BackwardSource, Flight, StoredActivations};
use super::border::{Arrived, BorderGradients};
use super::compute::Compute;
use super::exchange::Exchange;
use super::graphs::{Backward, Forward, Graphs};
use super::live::Half;
use super::loss::StageLoss;
use super::non_finite;
use super::offload::Offload;
use super::pass::{Pass, Purpose};
use super::segment::RunUnit;
use crate::error::TorchError;
use crate::step::{Mode, StepSettings};
use crate::values::{Values, hand_over};
use gpipe_engine::ActivationHint;

/// The passes of a stage's micro-batches, and the parts that take part in them.
#[derive(Debug)]
pub(super) struct Passes {
    compute: Compute,
    accumulator: Accumulator,
    activations: Activations,
    /// Set if the stage computes the loss.
    loss: Option<StageLoss>,
    /// Set if activations are offloaded.
    offload: Option<Offload>,
    /// The micro-batch whose forward is next and whose activations an `R` recomputes.
    recomputed: Option<MicroId>,
    /// Set if passes may be captured and replayed.
    graphs: Option<Graphs>,
    /// Set if the stage has copies in other replicas.
    exchange: Option<Exchange>,
}

impl Passes {
    pub(super) fn new(
        compute: Compute,
        accumulator: Accumulator,
        loss: Option<StageLoss>,
        offload: Option<Offload>,
        graphs: Option<Graphs>,
        exchange: Option<Exchange>,
    ) -> Self {
        Self {
            compute,
            accumulator,
            activations: Activations::default(),
            loss,
            offload,
            recomputed: None,
            graphs,
            exchange,
        }
    }

    pub(super) fn compute(&self) -> &Compute {
        &self.compute
    }

    pub(super) fn compute_mut(&mut self) -> &mut Compute {
        &mut self.compute
    }

    pub(super) fn accumulator(&self) -> &Accumulator {
        &self.accumulator
    }

    pub(super) fn accumulator_mut(&mut self) -> &mut Accumulator {
        &mut self.accumulator
    }

    pub(super) fn loss(&mut self) -> Option<&mut StageLoss> {
        self.loss.as_mut()
    }

    pub(super) fn has_loss(&self) -> bool {
        self.loss.is_some()
    }

    pub(super) fn offloads(&self) -> bool {
        self.offload.is_some()
    }

    pub(super) fn graphs(&self) -> Option<&Graphs> {
        self.graphs.as_ref()
    }

    // A step, from its beginning to its end.

    /// A step begins: what an earlier one left must be out of reach of this one's abort.
    pub(super) fn begin_step(&mut self, mode: &Mode) -> anyhow::Result<()> {
        self.commit_step()?;
        self.compute.buffers_mut().drop_saved();
        if matches!(mode, Mode::Train { .. }) {
            self.accumulator.set_aside(mode.micro_batches())?;
            self.compute.buffers_mut().save()?;
            if let Some(exchange) = &mut self.exchange {
                exchange.begin(&self.accumulator)?;
            }
            if let Some(graphs) = &mut self.graphs {
                graphs.begin_step(&self.compute)?;
            }
        }
        Ok(())
    }

    /// The last action of a step is done.
    pub(super) fn end_step(&mut self) {
        if let Some(graphs) = &mut self.graphs {
            graphs.end_step();
        }
    }

    /// Does the work that requires that the last step ended well on every stage: its gradients join
    /// those of earlier steps, and layers commit their gathered state.
    pub(super) fn commit_step(&mut self) -> anyhow::Result<()> {
        if self.accumulator.wait_for_found_inf()? {
            self.undo_step();
        }
        self.accumulator.commit()?;
        self.compute.layers().commit()?;
        Ok(self.compute.buffers_mut().commit()?)
    }

    /// Runs one round of the exchange with the stage's copies in other replicas.
    pub(super) fn exchange(
        &mut self,
        round: usize,
        from: Vec<Values>,
    ) -> anyhow::Result<Vec<Values>> {
        let Some(exchange) = &mut self.exchange else {
            anyhow::bail!("an exchange of a stage without copies");
        };
        exchange.round(round, from, &mut self.accumulator, &mut self.compute)
    }

    /// The gradients of the last step are used up; buffers are put back if it does not count.
    pub(super) fn commit_used_step(&mut self) -> anyhow::Result<()> {
        if let Some(found_inf) = self.accumulator.found_inf() {
            self.compute.buffers_mut().undo_where(&found_inf)?;
            self.accumulator.forget_found_inf();
            self.commit_step()?;
        }
        Ok(())
    }

    /// Leaves no trace of the last step.
    pub(super) fn undo_step(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.clear();
        }
        self.accumulator.undo();
        self.compute.layers().undo();
        self.compute.buffers_mut().undo();
    }

    /// Drops the activations in flight.
    pub(super) fn abort(&mut self) {
        let slots = self.activations.clear();
        if let Some(graphs) = &mut self.graphs {
            graphs.abort(slots);
        }
        self.recomputed = None;
        if let Some(offload) = &mut self.offload {
            offload.keep(None);
        }
    }

    /// Leaks the activations in flight: see [`super::lost_device`].
    pub(super) fn leak(&mut self) {
        self.activations.leak();
    }

    // Actions.

    /// Prepares for what becomes of activations.
    pub(super) fn take_hint(&mut self, hint: ActivationHint) -> Result<(), TorchError> {
        match (hint, &mut self.offload) {
            (ActivationHint::Recompute(again), _) => {
                self.recomputed = Some(again.micro);
                Ok(())
            }
            (_, None) => Ok(()),
            (ActivationHint::Keep(next), Some(offload)) => {
                offload.keep(Some(next.micro));
                Ok(())
            }
            (ActivationHint::Prefetch(next), Some(_)) => {
                self.activations.prefetch(next.micro, next.kind)
            }
        }
    }

    /// Runs one action: takes one value an edge into it, and gives one an edge out of it.
    pub(super) fn run(
        &mut self,
        action: Action,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let micro = action.micro;
        match (action.kind, &settings.mode) {
            (ActionKind::Forward, Mode::Infer { .. }) => {
                self.compute.infer(micro, inputs, settings)
            }
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
            (ActionKind::Recompute, Mode::Train { .. }) => self.recompute(micro, settings),
            (_, Mode::Infer { .. }) => anyhow::bail!("no {action} in inference"),
        }
    }

    /// Runs `F` in training, which leaves a flight.
    fn forward(
        &mut self,
        micro: MicroId,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let compute = &mut self.compute;
        let incoming = compute.layers().skips().incoming();
        let (mut values, mut skips, targets) = Arrived::new(inputs, incoming).into_parts();
        let offload = self.offload.as_mut();
        let offload = offload.and_then(|offload| offload.of_forward(micro));
        // If layers have their own recompute rule, an `R` refers to what that drops.
        let dropped = self.recomputed.take() == Some(micro) && !compute.segments().any_recomputes();
        let mut flight = Flight::default();
        for number in 0..compute.segments().len() {
            let unit = RunUnit::Segment(number);
            let mut inputs = compute.segments().get(unit).take_inputs(values, &mut skips);
            let (outputs, leaving, stored) =
                if dropped || compute.recomputes(number, micro, settings.mode.micro_batches()) {
                    inputs.set_buffers(compute.moving_buffers(unit)?);
                    let pass = Pass::new(micro, settings, Purpose::KeepInputs);
                    let (outputs, leaving) = compute.run(unit, &inputs, pass)?.into_values();
                    let outputs = outputs.try_move(|tensor| hand_over(&tensor))?;
                    let stored = StoredActivations::of_inputs(inputs, offload)?;
                    (outputs, leaving, stored)
                } else {
                    let pass = Pass::new(micro, settings, Purpose::KeepGraph(offload));
                    let done = match &mut self.graphs {
                        None => Forward::Run(compute.run(unit, &inputs, pass)?),
                        Some(graphs) => graphs.forward(compute, inputs, pass)?,
                    };
                    StoredActivations::of_forward(done)?
                };
            values = outputs;
            skips.put_all(leaving);
            flight.push(stored);
        }
        let outputs = if let Some(loss) = &mut self.loss {
            let graph = flight.loss_graph()?;
            let pass = Pass::new(micro, settings, Purpose::KeepGraph(offload));
            vec![loss.run(compute, (values, &targets), graph, pass)?]
        } else {
            if let Some(live) = flight.last_graph() {
                live.roots(&values)?;
            }
            let mut sent = vec![values.try_move(|tensor| hand_over(&tensor))?];
            sent.extend(skips.take_edges(compute.layers().skips().outgoing()));
            sent
        };
        self.activations.put(micro, flight);
        Ok(outputs)
    }

    /// `B` or `I`: takes one value an edge that carries a gradient out of the stage,
    /// gives one for each into it.
    fn backward(
        &mut self,
        half: Half,
        micro: MicroId,
        grads: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let mut flight = self.activations.take(micro)?;
        let outgoing = self.compute.layers().skips().outgoing();
        let mut grads = BorderGradients::arrived(grads, self.has_loss(), outgoing);
        if let Some(mut loss) = flight.take_loss() {
            let layers = self.compute.layers();
            layers.backward(&mut loss, Half::Joint, &mut grads)?;
        }
        let pass = Pass::new(micro, settings, Purpose::Recompute);
        if let Some(graphs) = &mut self.graphs {
            graphs.note_half(pass, half);
        }
        if half == Half::Joint {
            let gradients = self.accumulator.begin_micro_batch(micro.index())?;
            drop(self.go_back(flight, half, &mut grads, pass)?);
            self.accumulator.end_micro_batch(gradients)?;
        } else {
            let kept = self.go_back(flight, half, &mut grads, pass)?;
            self.activations.put(micro, Flight::halfway(kept));
        }
        let layers = self.compute.layers();
        non_finite::check(settings, &self.accumulator, layers, Some(&grads))?;
        let sends = !self.compute.is_first() || settings.mode.wants_input_gradient();
        Ok(grads.into_edges(sends, layers.skips().incoming()))
    }

    /// Runs the backward of the segments from last to first; returns, in that order, their state
    /// for the weight pass.
    fn go_back(
        &mut self,
        flight: Flight,
        half: Half,
        grads: &mut BorderGradients,
        pass: Pass<'_>,
    ) -> anyhow::Result<Vec<StoredActivations>> {
        let mut kept = Vec::new();
        for (number, stored) in flight.backwards() {
            let mut live = match stored.into_source()? {
                BackwardSource::Live(live) => live,
                BackwardSource::Recompute(inputs) => {
                    self.compute.recompute(number, &inputs, pass)?
                }
                BackwardSource::InGraphs(slot) => {
                    let (graphs, compute) = (graphs_of(&mut self.graphs)?, &mut self.compute);
                    match graphs.backward(compute, &self.accumulator, slot, half, grads, pass)? {
                        Backward::Run(live) => live,
                        Backward::Replayed(rest) => {
                            kept.extend(rest.map(StoredActivations::InGraphs));
                            continue;
                        }
                    }
                }
            };
            self.with_syncs_detected(|compute| compute.layers().backward(&mut live, half, grads))?;
            if half == Half::Input {
                kept.push(StoredActivations::Live(live));
            }
        }
        Ok(kept)
    }

    /// `W`: the parameters get what `I` left for them.
    fn backward_weight(
        &mut self,
        micro: MicroId,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let flight = self.activations.take(micro)?;
        let gradients = self.accumulator.begin_micro_batch(micro.index())?;
        for stored in flight.into_halfway() {
            match stored {
                StoredActivations::Live(mut live) => {
                    self.with_syncs_detected(|compute| compute.layers().backward_weight(&mut live))?
                }
                StoredActivations::InGraphs(slot) => {
                    let pass = Pass::new(micro, settings, Purpose::Recompute);
                    let (graphs, compute) = (graphs_of(&mut self.graphs)?, &mut self.compute);
                    graphs.backward_weight(compute, &self.accumulator, slot, pass)?;
                }
                _ => anyhow::bail!("micro-batch {micro} has no input pass behind it"),
            }
        }
        self.accumulator.end_micro_batch(gradients)?;
        let layers = self.compute.layers();
        non_finite::check(settings, &self.accumulator, layers, None)?;
        Ok(Vec::new())
    }

    /// `R`: the graph that the backward to come will begin with.
    fn recompute(
        &mut self,
        micro: MicroId,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let mut flight = self.activations.take(micro)?;
        if let Some((number, inputs)) = flight.take_recompute()? {
            let pass = Pass::new(micro, settings, Purpose::Recompute);
            let live = self.compute.recompute(number, &inputs, pass)?;
            flight.insert(number, live);
        }
        self.activations.put(micro, flight);
        Ok(Vec::new())
    }

    /// Runs what would be part of a CUDA graph, if the stage may use some.
    fn with_syncs_detected<T>(
        &self,
        body: impl FnOnce(&Compute) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        match &self.graphs {
            None => body(&self.compute),
            Some(graphs) => graphs.detect_syncs(|| body(&self.compute)),
        }
    }
}

/// # Errors
/// The stage has none, though a micro-batch is in one: a bug.
fn graphs_of(graphs: &mut Option<Graphs>) -> anyhow::Result<&mut Graphs> {
    let graphs = graphs.as_mut();
    graphs.ok_or_else(|| anyhow::anyhow!("a micro-batch in a CUDA graph of a stage without any"))
}
