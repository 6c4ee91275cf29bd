//! A stage that computes `y = w · x + b` in wrapping integers.

use anyhow::{Context, bail, ensure};
use gpipe_engine::{End, Observer, Stage, Topology};
use gpipe_partitioner::{Action, ActionKind, MicroId, StageId};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;

/// Gradients that a stage has accumulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grads {
    pub weight: i64,
    pub bias: i64,
    /// Depends on the order in which micro-batches were added.
    pub order: i64,
}

impl Grads {
    pub fn add(&mut self, gradient: i64, x: i64, micro: MicroId) {
        self.weight = self.weight.wrapping_add(gradient.wrapping_mul(x));
        self.bias = self.bias.wrapping_add(gradient);
        self.order = self
            .order
            .wrapping_mul(31)
            .wrapping_add(micro.index() as i64 + 1);
    }
}

/// When a stage is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Begin,
    Action(ActionKind, MicroId),
    End,
}

/// How a stage is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Error,
    Panic,
    TooManyValues,
    /// Waits until the gate of the settings is opened.
    Blocks,
    /// An error, once another stage is blocked.
    ErrorBeside,
}

/// A gate to wait at, closed at first.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    pub fn pass(&self) {
        let mut open = self.0.0.lock();
        while !*open {
            self.0.1.wait(&mut open);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub stage: StageId,
    pub when: When,
    pub how: How,
}

#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub faults: Vec<Fault>,
    /// Stages whose `abort` panics.
    pub abort_panics: Vec<StageId>,
    pub gate: Gate,
    /// Opened by a stage that is about to wait at the gate.
    pub blocked: Gate,
}

pub struct Affine {
    pub id: StageId,
    topology: Arc<Topology>,
    settings: Arc<Settings>,
    /// The input of every micro-batch between F and B (or W).
    held: HashMap<MicroId, i64>,
    /// Gradient of the output of every micro-batch between I and W.
    deferred: HashMap<MicroId, i64>,
    pub grads: Grads,
    before: Grads,
    pub aborts: usize,
    pub recomputed: usize,
}

pub fn weight(stage: StageId) -> i64 {
    2 * stage.index() as i64 + 3
}

pub fn bias(stage: StageId) -> i64 {
    7 - 3 * stage.index() as i64
}

impl Affine {
    pub fn new(id: StageId, topology: Arc<Topology>) -> Self {
        Self {
            id,
            topology,
            settings: Arc::default(),
            held: HashMap::new(),
            deferred: HashMap::new(),
            grads: Grads::default(),
            before: Grads::default(),
            aborts: 0,
            recomputed: 0,
        }
    }

    fn trip(&self, now: When) -> anyhow::Result<bool> {
        let here = |fault: &&Fault| fault.stage == self.id && fault.when == now;
        match self
            .settings
            .faults
            .iter()
            .find(here)
            .map(|fault| fault.how)
        {
            None => Ok(false),
            Some(How::TooManyValues) => Ok(true),
            Some(How::Blocks) => {
                self.settings.blocked.open();
                self.settings.gate.pass();
                Ok(false)
            }
            Some(How::ErrorBeside) => {
                self.settings.blocked.pass();
                bail!("made to fail")
            }
            Some(How::Error) => bail!("made to fail"),
            // `resume_unwind` prints nothing, unlike `panic!`.
            Some(How::Panic) => std::panic::resume_unwind(Box::new("made to panic")),
        }
    }

    fn forward(&mut self, micro: MicroId, inputs: &[i64]) -> anyhow::Result<Vec<i64>> {
        let x = combine(inputs);
        ensure!(
            self.held.insert(micro, x).is_none(),
            "two forwards of micro-batch {micro}"
        );
        let y = weight(self.id).wrapping_mul(x).wrapping_add(bias(self.id));
        let edges = self.topology.outgoing(End::Stage(self.id)).enumerate();
        Ok(edges
            .map(|(place, _)| y.wrapping_mul(place as i64 + 1))
            .collect())
    }

    /// Gradient of the output: every edge to the caller is a loss.
    fn output_gradient(&self, gradients: Vec<i64>) -> anyhow::Result<i64> {
        let mut gradients = gradients.into_iter();
        let mut sum = 0i64;
        for (place, (_, edge)) in self.topology.outgoing(End::Stage(self.id)).enumerate() {
            let gradient = match edge.to {
                End::Caller => 1,
                End::Stage(_) if edge.gradient => {
                    gradients.next().context("a gradient is missing")?
                }
                End::Stage(_) => 0,
            };
            sum = sum.wrapping_add(gradient.wrapping_mul(place as i64 + 1));
        }
        ensure!(gradients.next().is_none(), "too many gradients");
        Ok(sum)
    }

    fn input_gradients(&self, gradient: i64) -> Vec<i64> {
        let x = weight(self.id).wrapping_mul(gradient);
        let edges = self.topology.incoming(End::Stage(self.id)).enumerate();
        let carrying = edges.filter(|(_, (_, edge))| edge.gradient);
        carrying
            .map(|(place, _)| x.wrapping_mul(place as i64 + 1))
            .collect()
    }

    fn accumulate(&mut self, micro: MicroId, gradient: i64) -> anyhow::Result<()> {
        let x = self
            .held
            .remove(&micro)
            .context("no forward before the backward")?;
        self.grads.add(gradient, x, micro);
        Ok(())
    }

    fn act(&mut self, action: Action, inputs: Vec<i64>) -> anyhow::Result<Vec<i64>> {
        let micro = action.micro;
        match action.kind {
            ActionKind::Forward => self.forward(micro, &inputs),
            ActionKind::Backward => {
                let gradient = self.output_gradient(inputs)?;
                self.accumulate(micro, gradient)?;
                Ok(self.input_gradients(gradient))
            }
            ActionKind::BackwardInput => {
                let gradient = self.output_gradient(inputs)?;
                self.deferred.insert(micro, gradient);
                Ok(self.input_gradients(gradient))
            }
            ActionKind::BackwardWeight => {
                let gradient = self.deferred.remove(&micro).context("no I before the W")?;
                self.accumulate(micro, gradient)?;
                Ok(Vec::new())
            }
            ActionKind::Recompute => {
                ensure!(
                    self.held.contains_key(&micro),
                    "no forward before the recompute"
                );
                self.recomputed += 1;
                Ok(Vec::new())
            }
        }
    }
}

/// The input of a stage from the values on its edges.
pub fn combine(inputs: &[i64]) -> i64 {
    let weighted = inputs
        .iter()
        .enumerate()
        .map(|(place, x)| x.wrapping_mul(place as i64 + 1));
    weighted.fold(0, i64::wrapping_add)
}

impl Stage for Affine {
    type Value = i64;
    type Step = Settings;

    fn begin(&mut self, step: &Arc<Settings>) -> anyhow::Result<()> {
        self.settings = Arc::clone(step);
        self.before = self.grads;
        self.trip(When::Begin)?;
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<i64>) -> anyhow::Result<Vec<i64>> {
        let spoil = self.trip(When::Action(action.kind, action.micro))?;
        let mut outputs = self.act(action, inputs)?;
        if spoil {
            outputs.push(0);
        }
        Ok(outputs)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.trip(When::End)?;
        self.held.clear(); // Inputs left over from inference.
        ensure!(self.deferred.is_empty(), "a W is missing");
        Ok(())
    }

    fn abort(&mut self) {
        self.held.clear();
        self.deferred.clear();
        self.grads = self.before;
        self.aborts += 1;
        if self.settings.abort_panics.contains(&self.id) {
            std::panic::resume_unwind(Box::new("made to panic in abort"));
        }
    }

    fn layer(&self) -> Option<String> {
        Some(format!("affine.{}", self.id))
    }

    fn observer(&self) -> Option<Observer> {
        let name = self.layer();
        Some(Box::new(move || name.clone()))
    }

    fn bytes_in_flight(&self) -> u64 {
        8 * self.held.len() as u64
    }
}
