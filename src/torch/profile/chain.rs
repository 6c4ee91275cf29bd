//! Layers run in sequence, each as a stage of its own.
//!
//! Every layer has the border of a stage: its inputs enter a graph of its own where they need
//! gradients, and its backward receives the gradients sent by the next layer. So the measurements
//! show the work of a stage, layer by layer, in the order and with the values of training.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Action, ActionKind, MicroId, StageId};
use tch::{Device, Tensor};

use super::flow::{Flow, upstream};
use super::stopwatch::{Stopwatch, thread_time};
use crate::error::Error;
use crate::memory::Account;
use crate::pipeline::check_model;
use crate::streams::{DeviceStreams, InTransit, Route};
use crate::{
    Copies, Graphing, LayerBuilder, LossFn, Mode, NonFinite, Precision, Recompute, Sequential,
    Skip, StageSpec, StepSettings, TorchStage, Values,
};
use gpipe_engine::Stage as _;

/// Micro-batches per step. The first one creates the parameter gradients and the others add to
/// them, as nearly all do in training: only the others are measured.
const MICROS: usize = 4;
/// Fewest micro-batches that still include a measured one.
const FEWEST: usize = 2;
/// How long a device is kept busy while an action is submitted, initially and at most, in
/// microseconds.
const OCCUPIED: f64 = 1000.0;
const MOST_OCCUPIED: f64 = 20_000.0;

/// Kind of backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// B: the joint backward.
    Joint,
    /// I of all layers, then W of all layers.
    Halves,
    /// R before each B: everything is recomputed.
    Again,
}

/// Parts common to all chains of a model.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) layers: Vec<LayerBuilder>,
    pub(super) skips: Arc<[Skip]>,
    pub(super) device: Device,
    pub(super) seed: u64,
    pub(super) precision: Precision,
}

impl Plan {
    pub(super) fn new(model: &Sequential, device: Device, seed: u64) -> Result<Self, Error> {
        let skips = check_model(model)?;
        Ok(Self {
            layers: model.builders().to_vec(),
            skips: skips.into(),
            device,
            seed,
            precision: Precision::F32,
        })
    }

    pub(super) fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
}

/// A layer that runs as a stage of its own.
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) stage: TorchStage,
    /// Counter of its allocations; on a CUDA device the allocator counts for all layers.
    pub(super) account: Option<Account>,
    /// How long its device is kept busy while each kind of action is submitted, in microseconds.
    occupied: [f64; ActionKind::ALL.len()],
}

/// Duration of an action.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub(super) micros: f64,
    /// Working time of its thread in microseconds, or the duration where that is unknown.
    pub(super) busy: f64,
    /// Whether its thread had to wait for a core, or its device possibly for the host.
    pub(super) disturbed: bool,
    /// Time that its thread took to submit the work to an asynchronous device.
    pub(super) told: Option<f64>,
}

/// Receiver of durations: layer, kind, whether it was only a warm-up, and duration.
pub(super) type Record<'a> = &'a mut dyn FnMut(usize, ActionKind, bool, Took);

/// Consecutive layers of a model, each run as a stage.
pub(super) struct Chain {
    range: Range<usize>,
    pub(super) device: Device,
    pub(super) units: Vec<Unit>,
    loss: Option<Arc<dyn LossFn>>,
    /// Set on a CUDA device.
    stopwatch: Option<Stopwatch>,
    /// Micro-batches per step.
    micros: usize,
    hurry_from: Option<Instant>,
}

impl Chain {
    /// Builds the layers of `range` on this thread.
    pub(super) fn build(
        plan: &Plan,
        range: Range<usize>,
        loss: Option<&Arc<dyn LossFn>>,
    ) -> Result<Self, Error> {
        // Runs on the calling thread's current streams.
        let streams = Rc::new(DeviceStreams::host());
        let unit = |number: usize| -> Result<Unit, Error> {
            let last = number + 1 == plan.layers.len();
            let spec = StageSpec {
                number,
                last: last && loss.is_some(),
                device: plan.device,
                seed: plan.seed,
                layers: vec![plan.layers[number].clone()],
                range: number..number + 1,
                skips: Arc::clone(&plan.skips),
                recompute: Recompute::Never,
                precision: plan.precision,
                meter: None,
                route: Route::default(),
                graphing: Graphing::Off,
                tree: 1,
                copies: Copies::alone(),
            };
            let account = match plan.device {
                Device::Cpu => Some(Account::new()?),
                _ => None,
            };
            let scope = account.as_ref().map(Account::enter);
            let stage = TorchStage::build(&spec, &streams).map_err(Error::Build)?;
            drop(scope);
            Ok(Unit {
                name: plan.layers[number].name().to_owned(),
                stage,
                account,
                occupied: [OCCUPIED; ActionKind::ALL.len()],
            })
        };
        let units = range.clone().map(unit).collect::<Result<_, _>>()?;
        let stopwatch = match plan.device {
            Device::Cuda(index) => Some(Stopwatch::new(index)?),
            _ => None,
        };
        Ok(Self {
            stopwatch,
            micros: MICROS,
            hurry_from: None,
            range,
            device: plan.device,
            units,
            loss: loss.cloned(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Uses as few micro-batches per step as can be measured, from this time on.
    pub(super) fn hurry_from(&mut self, then: Instant) {
        self.hurry_from = Some(then);
    }

    /// Runs one training step of a few micro-batches; returns the last layer's outputs.
    pub(super) fn step(
        &mut self,
        way: Way,
        flow: &Flow,
        record: Record<'_>,
    ) -> Result<Flow, Error> {
        if self.hurry_from.is_some_and(|then| Instant::now() >= then) {
            self.micros = FEWEST;
        }
        self.begin(way, flow)?;
        let mut out = Flow::default();
        for micro in 0..self.micros {
            let mut timed =
                |unit: usize, kind: ActionKind, took: Took| record(unit, kind, micro == 0, took);
            out = self.forward(micro, flow, &mut timed)?;
            let grads = upstream(&out)?;
            match way {
                Way::Joint => self.back(micro, ActionKind::Backward, grads, &mut timed)?,
                Way::Again => self.back_again(micro, grads, &mut timed)?,
                Way::Halves => {
                    self.back(micro, ActionKind::BackwardInput, grads, &mut timed)?;
                    self.weights(micro, &mut timed)?;
                }
            }
        }
        self.end()?;
        Ok(out)
    }

    pub(super) fn begin(&mut self, way: Way, flow: &Flow) -> Result<(), Error> {
        // Without a loss this is never called: no stage is the last one then.
        let nothing = |output: &Tensor, _: &Tensor| output.shallow_clone();
        let loss = self.loss.clone().unwrap_or_else(|| Arc::new(nothing));
        let mode = Mode::Train {
            loss,
            shares: vec![1.0 / self.micros as f64; self.micros],
            input_gradient: flow.main.present().any(Tensor::requires_grad),
            non_finite: NonFinite::Allow,
            loss_scale: None,
        };
        let settings = Arc::new(StepSettings {
            step: 0,
            mode,
            caller_events: None,
        });
        for unit in &mut self.units {
            unit.stage.recompute_all(way == Way::Again);
            unit.stage.accumulator().zero_grad()?;
            let begun = unit.stage.begin(&settings);
            begun.map_err(|error| unit.failed("beginning a step", error))?;
        }
        Ok(())
    }

    pub(super) fn end(&mut self) -> Result<(), Error> {
        for unit in &mut self.units {
            let ended = unit.stage.end();
            ended.map_err(|error| unit.failed("ending a step", error))?;
        }
        Ok(())
    }

    /// Drops the state of a running step.
    pub(super) fn abort(&mut self) {
        self.units.iter_mut().for_each(|unit| unit.stage.abort());
    }

    pub(super) fn forward(
        &mut self,
        micro: usize,
        flow: &Flow,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<Flow, Error> {
        let mut flow = flow.shallow_clone();
        for number in 0..self.units.len() {
            self.forward_one(number, micro, &mut flow, timed)?;
        }
        Ok(flow)
    }

    pub(super) fn forward_one(
        &mut self,
        number: usize,
        micro: usize,
        flow: &mut Flow,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<(), Error> {
        let (incoming, outgoing) = self.units[number].stage.skip_ends();
        let mut inputs = vec![std::mem::take(&mut flow.main)];
        inputs.extend(
            incoming
                .iter()
                .map(|id| flow.skips.remove(id).unwrap_or_default()),
        );
        let outgoing = outgoing.to_vec();
        if self.units[number].stage.has_loss() {
            inputs.push(flow.targets.shallow_clone());
        }
        let outputs = self.run(number, ActionKind::Forward, micro, inputs, timed)?;
        let mut outputs = outputs.into_iter();
        flow.main = outputs.next().unwrap_or_default();
        flow.skips.extend(outgoing.into_iter().zip(outputs));
        Ok(())
    }

    /// Runs B or I from the last layer to the first.
    fn back(
        &mut self,
        micro: usize,
        kind: ActionKind,
        mut grads: Flow,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<(), Error> {
        for number in (0..self.units.len()).rev() {
            self.back_one(number, kind, micro, &mut grads, timed)?;
        }
        Ok(())
    }

    fn back_again(
        &mut self,
        micro: usize,
        mut grads: Flow,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<(), Error> {
        for number in (0..self.units.len()).rev() {
            self.run(number, ActionKind::Recompute, micro, Vec::new(), timed)?;
            self.back_one(number, ActionKind::Backward, micro, &mut grads, timed)?;
        }
        Ok(())
    }

    fn weights(
        &mut self,
        micro: usize,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<(), Error> {
        for number in (0..self.units.len()).rev() {
            self.run(number, ActionKind::BackwardWeight, micro, Vec::new(), timed)?;
        }
        Ok(())
    }

    pub(super) fn back_one(
        &mut self,
        number: usize,
        kind: ActionKind,
        micro: usize,
        grads: &mut Flow,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<(), Error> {
        let unit = &self.units[number];
        let (incoming, outgoing) = unit.stage.skip_ends();
        let (incoming, sends) = (incoming.to_vec(), unit.stage.sends_gradient());
        let mut inputs = Vec::new();
        let main = std::mem::take(&mut grads.main);
        if !unit.stage.has_loss() {
            inputs.push(main);
        }
        inputs.extend(
            outgoing
                .iter()
                .map(|id| grads.skips.remove(id).unwrap_or_default()),
        );
        let outputs = self.run(number, kind, micro, inputs, timed)?;
        let mut outputs = outputs.into_iter();
        if sends {
            grads.main = outputs.next().unwrap_or_default();
        }
        grads.skips.extend(incoming.into_iter().zip(outputs));
        Ok(())
    }

    /// Runs one action of one layer and reports its duration.
    pub(super) fn run(
        &mut self,
        number: usize,
        kind: ActionKind,
        micro: usize,
        inputs: Vec<Values>,
        timed: &mut dyn FnMut(usize, ActionKind, Took),
    ) -> Result<Vec<Values>, Error> {
        let unit = &mut self.units[number];
        let action = Action {
            stage: StageId(self.range.start + number),
            kind,
            micro: MicroId(micro),
        };
        let inputs = inputs.into_iter().map(InTransit::from).collect();
        let occupied = &mut unit.occupied[kind as usize];
        let begin = self.stopwatch.as_mut().map(|watch| watch.start(*occupied));
        let begin = begin.transpose()?;
        let scope = unit.account.as_ref().map(Account::enter);
        let (start, busy) = (Instant::now(), thread_time());
        let outputs = unit.stage.run(action, inputs);
        let mut micros = start.elapsed().as_secs_f64() * 1e6;
        let (mut told, mut late) = (None, false);
        if let (Some(watch), Some(begin)) = (&self.stopwatch, begin) {
            // If so, the device may have waited for the host, as it always does for a layer that
            // makes the host wait for the device.
            late = begin.is_over()?;
            if late {
                *occupied = (2.0 * occupied.max(micros)).min(MOST_OCCUPIED);
            }
            told = Some(micros);
            micros = watch.stop(&begin)?;
        }
        let busy = thread_time()
            .zip(busy)
            .map(|(now, then)| (now - then) * 1e6);
        drop(scope);
        let outputs = outputs.map_err(|error| unit.failed(words(kind), error))?;
        let on_cpu = self.device == Device::Cpu;
        timed(
            number,
            kind,
            Took {
                micros,
                busy: busy.filter(|_| on_cpu).unwrap_or(micros),
                disturbed: late || on_cpu && busy.is_some_and(|busy| micros > busy * 1.05 + 20.0),
                told,
            },
        );
        Ok(outputs
            .into_iter()
            .map(|in_transit| in_transit.values)
            .collect())
    }
}

impl Unit {
    fn failed(&self, action: &'static str, source: anyhow::Error) -> Error {
        Error::Profile {
            layer: self.name.clone(),
            action,
            source,
        }
    }
}

fn words(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::Forward => "forward",
        ActionKind::Backward => "backward",
        ActionKind::BackwardInput => "input half of the backward",
        ActionKind::BackwardWeight => "weight half of the backward",
        ActionKind::Recompute => "recompute",
    }
}
