//! `F`, and the forward that `R` or a backward runs once more.

use std::collections::HashMap;
use std::ops::Range;

use gpipe_partitioner::MicroId;
use tch::Tensor;

use super::flight::{Flight, Held, Inputs, Live, Transit};
use super::gradients::finite;
use super::{Running, TorchStage};
use crate::torch::error::TorchError;
use crate::torch::ffi::{self, Graph, RandomScope};
use crate::torch::layer::Context;
use crate::torch::rng;
use crate::torch::skips::SkipBox;
use crate::torch::step::{Mode, StepSettings};
use crate::torch::values::Values;

/// What is the same for all layers of one pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) micro: MicroId,
    pub(super) settings: &'a StepSettings,
    pub(super) recomputing: bool,
}

impl TorchStage {
    /// `F` in training: leaves a flight behind.
    pub(super) fn forward(
        &mut self,
        micro: MicroId,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let (mut values, mut transit, targets) = self.unpack(inputs)?;
        let pass = Pass {
            micro,
            settings,
            recomputing: false,
        };
        let redo = self.recompute.applies(micro, settings.mode.micro_batches());
        let mut segments = Vec::with_capacity(self.segments.len());
        for number in 0..self.segments.len() {
            let held;
            (values, held) = if redo && self.segments[number].recompute {
                self.run_without_graph(number, values, &mut transit, pass)?
            } else {
                self.run_with_graph(number, values, &mut transit, pass)?
            };
            segments.push(held);
        }
        let mut flight = Flight {
            segments,
            loss: None,
        };
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
        let _no_grad = tch::no_grad_guard();
        let (values, mut transit, _) = self.unpack(inputs)?;
        let pass = Pass {
            micro,
            settings,
            recomputing: false,
        };
        let layers = 0..self.layers.len();
        let values = self.run_layers(layers, values, &mut transit, pass, None)?;
        let mut sent = vec![values];
        sent.extend(self.sent_skips(&mut transit));
        Ok(sent)
    }

    /// What arrived: the main values, those of skips, and on the last stage in
    /// training the targets.
    fn unpack(&self, inputs: Vec<Values>) -> anyhow::Result<(Values, Transit, Values)> {
        let mut inputs = inputs.into_iter();
        let values = inputs.next().unwrap_or_default();
        let mut transit = Transit::new();
        for &skip in &self.incoming {
            let value = inputs.next().unwrap_or_default();
            transit.insert(skip, value.into_iter().next().flatten());
        }
        Ok((values, transit, inputs.next().unwrap_or_default()))
    }

    /// What leaves the stage beside the loss: the outputs, then a value a skip, all
    /// detached, so that what the next stage does to them in place stays there.
    fn send(
        &self,
        values: Values,
        flight: &mut Flight,
        transit: &mut Transit,
    ) -> anyhow::Result<Vec<Values>> {
        if let Some(Held::Live(live)) = flight.segments.last_mut() {
            add_roots(&mut live.graph, &values)?;
        }
        let _no_grad = tch::no_grad_guard();
        let mut sent = vec![values.try_map(|tensor| ffi::snapshot(&tensor))?];
        sent.extend(self.sent_skips(transit));
        Ok(sent)
    }

    fn sent_skips(&self, transit: &mut Transit) -> Vec<Values> {
        let values = self.outgoing.iter().map(|skip| transit.remove(skip));
        values
            .map(|value| [value.flatten()].into_iter().collect())
            .collect()
    }

    /// Runs a segment and keeps its graph, whose first roots are the skips that
    /// leave it; its outputs are not roots yet.
    pub(super) fn run_with_graph(
        &mut self,
        number: usize,
        inputs: Values,
        transit: &mut Transit,
        pass: Pass<'_>,
    ) -> anyhow::Result<(Values, Held)> {
        let mut live = Live::new()?;
        let segment = self.segments[number].clone();
        let at_the_very_start =
            self.first && number == 0 && !pass.settings.mode.wants_input_gradient();
        let inputs = if at_the_very_start {
            inputs
        } else {
            live.enter(inputs)?
        };
        for &skip in &segment.incoming {
            let value = transit.remove(&skip).flatten();
            transit.insert(skip, live.enter_skip(skip, value)?);
        }
        let layers = segment.layers.clone();
        let graph = Some(&mut live.graph);
        let outputs = self.run_layers(layers, inputs, transit, pass, graph)?;
        for &skip in &segment.outgoing {
            let value = transit.remove(&skip).flatten();
            let absent = Tensor::new();
            live.graph.root(value.as_ref().unwrap_or(&absent))?;
            let value = value.map(|value| value.f_detach()).transpose()?;
            transit.insert(skip, value);
        }
        live.outgoing = segment.outgoing;
        let inner = number + 1 < self.segments.len();
        let outputs = if inner {
            add_roots(&mut live.graph, &outputs)?;
            outputs.try_map(|tensor| tensor.f_detach())?
        } else {
            outputs
        };
        Ok((outputs, Held::Live(live)))
    }

    /// Runs a segment and keeps only its inputs, of which the layers see snapshots:
    /// what they do in place must not reach the second run.
    fn run_without_graph(
        &mut self,
        number: usize,
        inputs: Values,
        transit: &mut Transit,
        pass: Pass<'_>,
    ) -> anyhow::Result<(Values, Held)> {
        let _no_grad = tch::no_grad_guard();
        let segment = self.segments[number].clone();
        let main = inputs.shallow_clone();
        let mut skips = Vec::new();
        for &skip in &segment.incoming {
            let value = transit.remove(&skip).flatten();
            let seen = value.as_ref().map(ffi::snapshot).transpose()?;
            skips.push((skip, value));
            transit.insert(skip, seen);
        }
        let seen = inputs.try_map(|tensor| ffi::snapshot(&tensor))?;
        let outputs = self.run_layers(segment.layers, seen, transit, pass, None)?;
        Ok((outputs, Held::Inputs(Inputs { main, skips })))
    }

    /// Makes the graph of a segment that kept its inputs: the forward once more.
    pub(super) fn recompute(
        &mut self,
        number: usize,
        inputs: Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<Live> {
        let range = self.segments[number].layers.clone();
        let buffers: Vec<(Tensor, Tensor)> = self.layers[range]
            .iter()
            .flat_map(crate::torch::sequential::BuiltLayer::buffers)
            .map(|(_, buffer)| Ok((buffer.f_data()?, buffer.copy())))
            .collect::<Result<_, tch::TchError>>()?;
        let mut transit: Transit = inputs.skips.into_iter().collect();
        let (outputs, held) = self.run_with_graph(number, inputs.main, &mut transit, pass)?;
        let Held::Live(mut live) = held else {
            anyhow::bail!("a segment was run without its graph");
        };
        if number + 1 == self.segments.len() {
            add_roots(&mut live.graph, &outputs)?;
        }
        // Past autograd's eyes: the graph just made may have saved these.
        tch::no_grad(|| {
            buffers
                .into_iter()
                .try_for_each(|(mut buffer, before)| buffer.f_copy_(&before).map(drop))
        })?;
        Ok(live)
    }

    fn run_layers(
        &mut self,
        layers: Range<usize>,
        mut values: Values,
        transit: &mut Transit,
        pass: Pass<'_>,
        mut graph: Option<&mut Graph>,
    ) -> anyhow::Result<Values> {
        for number in layers {
            self.running = Running::Layer(number);
            values = self.run_layer(number, values, transit, pass)?;
            if let Some(graph) = graph.as_deref_mut() {
                values
                    .present()
                    .try_for_each(|output| graph.mark(output, number))?;
            }
        }
        self.running = Running::Nothing;
        Ok(values)
    }

    fn run_layer(
        &self,
        number: usize,
        inputs: Values,
        transit: &mut Transit,
        pass: Pass<'_>,
    ) -> anyhow::Result<Values> {
        let built = &self.layers[number];
        let seed = rng::pass_seed(built.seed, pass.settings.step, pass.micro.index());
        let _random = RandomScope::open(seed)?;
        let ctx = Context {
            train: matches!(pass.settings.mode, Mode::Train { .. }),
            micro: pass.micro,
            device: self.device,
            recomputing: pass.recomputing,
            skips: SkipBox::new(&built.declared, self.waiting(number, transit)),
        };
        let outputs = built.layer.forward(inputs, &ctx)?;
        self.stashed(number, ctx.skips.finish()?, transit);
        if pass.settings.mode.fails_on_non_finite() {
            for output in outputs.present() {
                anyhow::ensure!(finite(output)?, "an output is not finite (NaN or infinity)");
            }
        }
        Ok(outputs)
    }

    /// What a layer finds to pop, by name.
    fn waiting(&self, number: usize, transit: &mut Transit) -> HashMap<String, Option<Tensor>> {
        let layer = self.first_layer + number;
        let skips = self.skips.iter().enumerate();
        skips
            .filter(|(_, skip)| skip.to == layer)
            .map(|(id, skip)| (skip.name.clone(), transit.remove(&id).flatten()))
            .collect()
    }

    /// Puts what a layer stashed on its ways.
    fn stashed(
        &self,
        number: usize,
        stashed: Vec<(String, Option<Tensor>)>,
        transit: &mut Transit,
    ) {
        let layer = self.first_layer + number;
        for (name, value) in stashed {
            for (id, skip) in self.skips.iter().enumerate() {
                if skip.from == layer && skip.name == name {
                    transit.insert(id, value.as_ref().map(Tensor::shallow_clone));
                }
            }
        }
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
        self.running = Running::Loss;
        let seed = rng::pass_seed(self.loss_seed, pass.settings.step, pass.micro.index());
        let _random = RandomScope::open(seed)?;
        let (live, outputs) = match flight.segments.last_mut() {
            Some(Held::Live(live)) => (live, outputs),
            _ => {
                let live = flight.loss.insert(Live::new()?);
                let outputs = live.enter(outputs)?;
                (live, outputs)
            }
        };
        let loss = loss.loss(&outputs, targets)?;
        let share = shares.get(pass.micro.index()).copied().unwrap_or_default();
        live.graph.loss(&loss.value, loss.weight.unwrap_or(share))?;
        live.graph.mark(&loss.value, self.layers.len())?;
        if pass.settings.mode.fails_on_non_finite() {
            anyhow::ensure!(finite(&loss.value)?, "the loss is not finite");
        }
        self.running = Running::Nothing;
        let weight = loss
            .weight
            .map(|weight| Tensor::from(weight).to_device(self.device));
        Ok([Some(loss.value.f_detach()?), weight].into_iter().collect())
    }
}

/// Makes a graph's outputs its roots.
fn add_roots(graph: &mut Graph, outputs: &Values) -> Result<(), TorchError> {
    let absent = Tensor::new();
    outputs
        .iter()
        .try_for_each(|output| graph.root(output.unwrap_or(&absent)))
}
