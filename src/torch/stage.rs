//! A stage: consecutive layers on one device, driven by the engine's actions.
//!
//! The life of one micro-batch here: `F` turns what was received into the
//! beginning of a graph, runs the layers, and sends the outputs on, detached;
//! the graph waits as the micro-batch's *flight*. `B` is given the gradients of
//! those outputs, runs autograd once, accumulates into the parameters and sends
//! back the gradients that arrived at the inputs. The last stage's outputs are
//! the loss, which brings its own gradient: the micro-batch's share of the
//! mini-batch.

use std::collections::HashMap;
use std::sync::Arc;

use gpipe_partitioner::{Action, Kind, MicroId};
use tch::{Device, Tensor};

use super::error::TorchError;
use super::ffi::{self, Graph, RandomScope, Sink};
use super::layer::Context;
use super::optim::{OptimizerKind, OptimizerState};
use super::rng;
use super::sequential::{BuiltLayer, LayerBuilder};
use super::skips::SkipBox;
use super::step::{Mode, StepSettings};
use super::values::Values;
use crate::engine::Stage;

/// Consecutive layers on one device.
#[derive(Debug)]
pub(crate) struct TorchStage {
    device: Device,
    first: bool,
    last: bool,
    layers: Vec<BuiltLayer>,
    /// The loss function's random source, as each layer has one.
    loss_seed: u64,
    parameters: Vec<(String, Tensor)>,
    buffers: Vec<(String, Tensor)>,
    flights: HashMap<MicroId, Flight>,
    settings: Option<Arc<StepSettings>>,
    /// Gradients that earlier steps left: set aside so that a failed step can
    /// give them back, and so that this step's can be scaled alone.
    held: Vec<Option<Tensor>>,
    /// Buffers (batch-norm statistics) as they were before the step.
    saved_buffers: Vec<Tensor>,
    optimizers: HashMap<u64, OptimizerState>,
    running: Running,
}

/// Where the stage is, for error messages.
#[derive(Debug, Clone, Copy)]
enum Running {
    Nothing,
    Layer(usize),
    Loss,
}

/// What a micro-batch leaves on the stage between its forward and its backward.
#[derive(Debug)]
struct Flight {
    graph: Graph,
    /// One entry an incoming value; `None` where no gradient can flow.
    sinks: Vec<Option<Sink>>,
}

impl TorchStage {
    /// Builds the stage's layers on `device`, on the thread that will run them.
    pub(crate) fn build(
        layers: &[LayerBuilder],
        device: Device,
        seed: u64,
        (first, last): (bool, bool),
    ) -> anyhow::Result<Self> {
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| layer.build(device, seed))
            .collect::<Result<_, _>>()?;
        let variables = layers.iter().flat_map(BuiltLayer::variables);
        let (parameters, buffers) = variables.partition(|(_, tensor)| tensor.requires_grad());
        Ok(Self {
            device,
            first,
            last,
            layers,
            loss_seed: rng::named_seed(seed, "loss"),
            parameters,
            buffers,
            flights: HashMap::new(),
            settings: None,
            held: Vec::new(),
            saved_buffers: Vec::new(),
            optimizers: HashMap::new(),
            running: Running::Nothing,
        })
    }

    /// Names and handles of the parameters, by layer and name.
    pub(crate) fn parameters(&mut self) -> Result<&[(String, Tensor)], TorchError> {
        self.settle()?;
        Ok(&self.parameters)
    }

    /// Names and handles of the buffers, by layer and name.
    pub(crate) fn buffers(&self) -> &[(String, Tensor)] {
        &self.buffers
    }

    /// Applies and clears the accumulated gradients.
    pub(crate) fn optimize(&mut self, id: u64, kind: &OptimizerKind) -> Result<(), TorchError> {
        self.settle()?;
        self.optimizers
            .entry(id)
            .or_default()
            .step(kind, &handles(&self.parameters))
    }

    /// Clears the accumulated gradients.
    pub(crate) fn zero_grad(&mut self) -> Result<(), TorchError> {
        self.held.clear();
        self.parameters
            .iter()
            .try_for_each(|(_, parameter)| ffi::set_grad(parameter, None))
    }

    /// Scales the gradients of the step that just ended well, not earlier ones.
    pub(crate) fn scale_step(&mut self, factor: f64) -> Result<(), TorchError> {
        let grads: Vec<_> = self
            .parameters
            .iter()
            .map(|(_, p)| p.grad())
            .filter(Tensor::defined)
            .collect();
        ffi::scale(&grads, factor)
    }

    /// Adds the last step's gradients to the earlier ones that [`Stage::begin`]
    /// set aside. Done when somebody needs the sum: only then is it certain that
    /// the step ended well on every stage.
    fn settle(&mut self) -> Result<(), TorchError> {
        for ((_, parameter), held) in self.parameters.iter().zip(std::mem::take(&mut self.held)) {
            let Some(earlier) = held else { continue };
            if let Some(new) = ffi::take_grad(parameter)? {
                ffi::add(std::slice::from_ref(&earlier), &[new])?;
            }
            ffi::set_grad(parameter, Some(&earlier))?;
        }
        Ok(())
    }

    fn settings(&self) -> anyhow::Result<Arc<StepSettings>> {
        self.settings
            .clone()
            .ok_or_else(|| anyhow::anyhow!("an action outside of a step"))
    }

    fn receive(&self, values: Values) -> Result<Values, TorchError> {
        values.try_map(|tensor| {
            if tensor.device() == self.device {
                return Ok(tensor);
            }
            Ok(tensor.f_to_device(self.device)?)
        })
    }

    fn run_layers(
        &mut self,
        mut values: Values,
        micro: MicroId,
        settings: &StepSettings,
        mut graph: Option<&mut Graph>,
    ) -> anyhow::Result<Values> {
        for (number, built) in self.layers.iter().enumerate() {
            self.running = Running::Layer(number);
            let seed = rng::pass_seed(built.seed, settings.step, micro.index());
            let _random = RandomScope::open(seed)?;
            let ctx = Context {
                train: graph.is_some(),
                micro,
                device: self.device,
                recomputing: false,
                skips: SkipBox::new(&built.declared, HashMap::new()),
            };
            values = built.layer.forward(values, &ctx)?;
            ctx.skips.finish()?;
            if let Some(graph) = graph.as_deref_mut() {
                values
                    .present()
                    .try_for_each(|output| graph.mark(output, number))?;
            }
        }
        Ok(values)
    }

    /// `F` in training: leaves a flight behind.
    fn forward(
        &mut self,
        micro: MicroId,
        inputs: Values,
        targets: Option<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Values> {
        let mut graph = Graph::new()?;
        let (inputs, sinks) = self.enter(inputs, &mut graph, settings)?;
        let outputs = self.run_layers(inputs, micro, settings, Some(&mut graph))?;
        let sent = if let Some(targets) = targets {
            self.loss(&outputs, &targets, micro, settings, &mut graph)?
        } else {
            let absent = Tensor::new();
            let roots = outputs.iter().map(|output| output.unwrap_or(&absent));
            roots
                .into_iter()
                .try_for_each(|output| graph.root(output))?;
            outputs.try_map(|tensor| tensor.f_detach())?
        };
        self.flights.insert(micro, Flight { graph, sinks });
        Ok(sent)
    }

    /// Makes the received values the beginning of the graph: one sink a value,
    /// or none at all where nobody wants the gradients.
    fn enter(
        &self,
        inputs: Values,
        graph: &mut Graph,
        settings: &StepSettings,
    ) -> Result<(Values, Vec<Option<Sink>>), TorchError> {
        if self.first && !settings.mode.wants_input_gradient() {
            return Ok((inputs, Vec::new()));
        }
        let mut sinks = Vec::with_capacity(inputs.len());
        let mut begin = |tensor: Option<Tensor>| -> Result<Option<Tensor>, TorchError> {
            let begun = tensor.map(|tensor| graph.input(&tensor)).transpose()?;
            sinks.push(begun.as_ref().and_then(|(_, sink)| *sink));
            Ok(begun.map(|(tensor, _)| tensor))
        };
        let inputs = inputs
            .into_iter()
            .map(&mut begin)
            .collect::<Result<Values, _>>()?;
        Ok((inputs, sinks))
    }

    /// What the last stage adds to its forward: the loss becomes the graph's root.
    fn loss(
        &mut self,
        outputs: &Values,
        targets: &Values,
        micro: MicroId,
        settings: &StepSettings,
        graph: &mut Graph,
    ) -> anyhow::Result<Values> {
        let Mode::Train { loss, shares, .. } = &settings.mode else {
            anyhow::bail!("a loss in inference");
        };
        self.running = Running::Loss;
        let seed = rng::pass_seed(self.loss_seed, settings.step, micro.index());
        let _random = RandomScope::open(seed)?;
        let loss = loss.loss(outputs, targets)?;
        let share = shares.get(micro.index()).copied().unwrap_or_default();
        graph.loss(&loss.value, loss.weight.unwrap_or(share))?;
        graph.mark(&loss.value, self.layers.len())?;
        Ok(loss_parts(&loss.value, loss.weight, self.device))
    }

    /// `F` in inference: no graph.
    fn infer(
        &mut self,
        micro: MicroId,
        inputs: Values,
        settings: &StepSettings,
    ) -> anyhow::Result<Values> {
        let _no_grad = tch::no_grad_guard();
        self.run_layers(inputs, micro, settings, None)
    }

    /// `B`: `grads` has one entry an output, or none on the last stage.
    fn backward(&mut self, micro: MicroId, grads: Option<Values>) -> anyhow::Result<Values> {
        let mut flight = self.flights.remove(&micro).ok_or_else(|| {
            anyhow::anyhow!("micro-batch {micro} has no forward to go back through")
        })?;
        self.running = Running::Nothing;
        let grads: Vec<_> = grads.map_or_else(|| vec![None], |grads| grads.into_iter().collect());
        let done = flight.graph.backward(&grads);
        drop(grads);
        if let Err(error) = done {
            self.running = match flight.graph.layer() {
                Some(number) if number < self.layers.len() => Running::Layer(number),
                Some(_) => Running::Loss,
                None => Running::Nothing,
            };
            return Err(error.into());
        }
        flight
            .sinks
            .iter()
            .map(|sink| sink.map_or(Ok(None), |sink| flight.graph.take_grad(sink)))
            .collect::<Result<_, _>>()
            .map_err(Into::into)
    }

    fn run_action(&mut self, action: Action, inputs: Vec<Values>) -> anyhow::Result<Vec<Values>> {
        let settings = self.settings()?;
        let mut inputs = inputs.into_iter().map(|values| self.receive(values));
        let first = inputs.next().transpose()?;
        let second = inputs.next().transpose()?;
        drop(inputs);
        match (action.kind, &settings.mode) {
            (Kind::Forward, Mode::Infer) => Ok(vec![self.infer(
                action.micro,
                first.unwrap_or_default(),
                &settings,
            )?]),
            (Kind::Forward, Mode::Train { .. }) => {
                let targets = if self.last { second } else { None };
                Ok(vec![self.forward(
                    action.micro,
                    first.unwrap_or_default(),
                    targets,
                    &settings,
                )?])
            }
            (Kind::Backward, mode @ Mode::Train { .. }) => {
                let grads = self.backward(action.micro, first)?;
                let sends = !self.first || mode.wants_input_gradient();
                Ok(if sends { vec![grads] } else { Vec::new() })
            }
            _ => anyhow::bail!("this stage cannot run {action}"),
        }
    }
}

impl Stage for TorchStage {
    type Value = Values;
    type Step = StepSettings;

    fn begin(&mut self, step: &Arc<StepSettings>) -> anyhow::Result<()> {
        self.running = Running::Nothing;
        self.settings = Some(Arc::clone(step));
        // What an earlier step left must be out of reach of this one's abort.
        self.settle()?;
        self.saved_buffers.clear();
        if matches!(step.mode, Mode::Train { .. }) {
            self.held = self
                .parameters
                .iter()
                .map(|(_, p)| ffi::take_grad(p))
                .collect::<Result<_, _>>()?;
            self.saved_buffers = self.buffers.iter().map(|(_, b)| b.copy()).collect();
        }
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<Values>) -> anyhow::Result<Vec<Values>> {
        super::caught(|| self.run_action(action, inputs))
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.settings = None;
        self.running = Running::Nothing;
        Ok(())
    }

    fn abort(&mut self) {
        self.settings = None;
        self.running = Running::Nothing;
        self.flights.clear();
        // Both calls only move handles and copy between tensors that were made as
        // copies of each other; there is nobody left to tell if they failed.
        for ((_, parameter), held) in self.parameters.iter().zip(std::mem::take(&mut self.held)) {
            let _ = ffi::set_grad(parameter, held.as_ref());
        }
        let saved = std::mem::take(&mut self.saved_buffers);
        tch::no_grad(|| {
            for ((_, buffer), saved) in self.buffers.iter().zip(&saved) {
                let _ = buffer.shallow_clone().f_copy_(saved);
            }
        });
    }

    fn layer(&self) -> Option<String> {
        match self.running {
            Running::Nothing => None,
            Running::Layer(number) => self.layers.get(number).map(|layer| layer.name.clone()),
            Running::Loss => Some("loss".to_owned()),
        }
    }
}

/// What the last stage sends to the caller: the loss, and its weight if it has one.
fn loss_parts(loss: &Tensor, weight: Option<f64>, device: Device) -> Values {
    let weight = weight.map(|weight| Tensor::from(weight).to_device(device));
    [Some(loss.detach()), weight].into_iter().collect()
}

fn handles(named: &[(String, Tensor)]) -> Vec<Tensor> {
    named
        .iter()
        .map(|(_, tensor)| tensor.shallow_clone())
        .collect()
}
