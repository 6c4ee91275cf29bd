//! A stage that sums in the order of a tree, and exchanges its sums with its copies.
//!
//! A sum is a number whose last bits depend on the order of additions, and a string that spells
//! that order. A step's M micro-batches are in k leaves: leaf j is the serial sum of micro-batches
//! jM/k to (j+1)M/k, and the leaves are added in a balanced binary tree. Replica r of d has the k/d
//! leaves below one node of the tree.

use anyhow::{Context, bail, ensure};
use gpipe_engine::{ActivationHint, Observer, Stage};
use gpipe_partitioner::{Action, ActionKind, MicroId, StageId};
use parking_lot::Mutex;
use std::sync::Arc;

use super::{Gate, How};

/// Slices of a stage's gradients; the replicas divide them among themselves.
pub const SLICES: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    number: f32,
    words: String,
}

/// Adds two sums; an empty sum is `None`, and nothing is added for it.
pub fn plus(left: Option<Sum>, right: Option<Sum>) -> Option<Sum> {
    match (left, right) {
        (Some(left), Some(right)) => Some(Sum {
            number: left.number + right.number,
            words: format!("({} + {})", left.words, right.words),
        }),
        (left, right) => left.or(right),
    }
}

/// Returns the sum at the node above `sums`.
pub fn node(sums: &[Option<Sum>]) -> Option<Sum> {
    if let [sum] = sums {
        return sum.clone();
    }
    let (left, right) = sums.split_at(sums.len() / 2);
    plus(node(left), node(right))
}

/// Returns the gradient that a micro-batch adds to a slice of a stage.
pub fn gradient(stage: StageId, micro: MicroId, slice: usize) -> Sum {
    let scale = [1.0e-4, 3.7, 512.3, -0.77, 1.0e5][(micro.index() + slice) % 5];
    Sum {
        number: scale * (1.1 + stage.index() as f32),
        words: format!("{stage}.{micro}.{slice}"),
    }
}

/// The micro-batches of leaf j of k.
pub fn leaf(j: usize, k: usize, micros: usize) -> impl Iterator<Item = MicroId> + Clone {
    (j * micros / k..(j + 1) * micros / k).map(MicroId)
}

/// Value that travels between stages or copies.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Between stages.
    Number(i64),
    /// Between copies.
    Slices(Vec<Option<Sum>>),
}

/// Call in which a stage is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Begin,
    Action(ActionKind, MicroId),
    Exchange(usize),
    End,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub stage: StageId,
    pub replica: usize,
    pub when: When,
    pub how: How,
}

#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Micro-batches of all replicas.
    pub micros: usize,
    pub training: bool,
    pub fault: Option<Fault>,
    pub gate: Gate,
    /// Log of the stages' work: stage, replica, description.
    pub log: Arc<Mutex<Vec<(StageId, usize, String)>>>,
    /// Log of prefetch hints: replica, and the hint with the stage's last action.
    pub prefetched: Arc<Mutex<Vec<(usize, String)>>>,
}

pub struct Leafy {
    pub id: StageId,
    pub replica: usize,
    replicas: usize,
    leaves: usize,
    settings: Arc<Settings>,
    /// Micro-batches whose gradients were added, in order.
    added: Vec<MicroId>,
    /// This replica's sum, by slice, during an exchange.
    own: Vec<Option<Sum>>,
    /// Whether the sum of all replicas is complete.
    whole: bool,
    /// The sums of good steps.
    pub steps: Vec<Vec<Option<Sum>>>,
    before: usize,
    pub aborts: usize,
}

impl Leafy {
    pub fn new(id: StageId, (replica, replicas): (usize, usize), leaves: usize) -> Self {
        Self {
            id,
            replica,
            replicas,
            leaves,
            settings: Arc::default(),
            added: Vec::new(),
            own: Vec::new(),
            whole: false,
            steps: Vec::new(),
            before: 0,
            aborts: 0,
        }
    }

    /// Logs `what` and injects a fault that is due; true means to return too many values.
    fn trip(&self, now: When, what: String) -> anyhow::Result<bool> {
        let mut log = self.settings.log.lock();
        log.push((self.id, self.replica, what));
        drop(log);
        let here = |own: &Fault| (own.stage, own.replica, own.when) == (self.id, self.replica, now);
        match self.settings.fault.filter(here).map(|own| own.how) {
            None => Ok(false),
            Some(How::TooManyValues) => Ok(true),
            Some(How::Blocks) => {
                self.settings.gate.pass();
                Ok(false)
            }
            Some(How::Error | How::ErrorBeside) => bail!("made to fail"),
            Some(How::Panic) => std::panic::resume_unwind(Box::new("made to panic")),
        }
    }

    /// Returns the sum of this replica's leaves.
    fn sum_leaves(&self, slice: usize) -> anyhow::Result<Option<Sum>> {
        let (k, d) = (self.leaves, self.replicas);
        let mut added = self.added.iter();
        let leaves = self.replica * k / d..(self.replica + 1) * k / d;
        let mut sums = Vec::new();
        for j in leaves {
            let mut sum = None;
            for micro in leaf(j, k, self.settings.micros) {
                let next = added.next().context("a micro-batch was not added")?;
                ensure!(*next == micro, "micro-batch {next} in the place of {micro}");
                sum = plus(sum, Some(gradient(self.id, micro, slice)));
            }
            sums.push(sum);
        }
        ensure!(added.next().is_none(), "micro-batches of another replica");
        Ok(node(&sums))
    }

    /// The slices that `replica` sums.
    fn slices_of(&self, replica: usize) -> std::ops::Range<usize> {
        let each = SLICES / self.replicas;
        replica * each..(replica + 1) * each
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.replica;
        (0..self.replicas).filter(move |other| *other != own)
    }

    /// Round 0: sends each other replica its slices of this replica's sum.
    fn give(&mut self) -> anyhow::Result<Vec<Value>> {
        let sums = (0..SLICES).map(|slice| self.sum_leaves(slice));
        self.own = sums.collect::<anyhow::Result<_>>()?;
        let of = |other| Value::Slices(self.own[self.slices_of(other)].to_vec());
        Ok(self.others().map(of).collect())
    }

    /// Returns the slices from each replica, by replica; empty for this one.
    fn given(&self, from: Vec<Value>) -> anyhow::Result<Vec<Vec<Option<Sum>>>> {
        ensure!(from.len() + 1 == self.replicas, "{} values", from.len());
        let mut all = vec![Vec::new(); self.replicas];
        for (other, value) in self.others().zip(from) {
            match value {
                Value::Slices(slices) => all[other] = slices,
                Value::Number(number) => bail!("{number} in an exchange"),
            }
        }
        Ok(all)
    }

    /// Round 1: sends the total of this replica's slices to all others.
    fn reduce(&mut self, from: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        let mut all = self.given(from)?;
        let own = self.slices_of(self.replica);
        all[self.replica] = self.own[own.clone()].to_vec();
        for (at, slice) in own.clone().enumerate() {
            let sums: Vec<_> = all.iter().map(|slices| slices[at].clone()).collect();
            self.own[slice] = node(&sums);
        }
        let sums = Value::Slices(self.own[own].to_vec());
        Ok(self.others().map(|_| sums.clone()).collect())
    }

    /// Round 2: takes the total slices of all others.
    fn gather(&mut self, from: Vec<Value>) -> anyhow::Result<()> {
        let all = self.given(from)?;
        for other in self.others() {
            let slices = self.slices_of(other);
            self.own[slices].clone_from_slice(&all[other]);
        }
        self.whole = true;
        Ok(())
    }

    fn act(&mut self, action: Action, inputs: &[Value]) -> anyhow::Result<Option<Value>> {
        let place = |stage: usize| (action.micro.index() * 100 + stage) as i64;
        let expects = |wanted: i64| match inputs {
            [Value::Number(number)] if *number == wanted => Ok(()),
            other => bail!("{other:?} where {wanted} belongs"),
        };
        let stage = self.id.index();
        if action.kind.accumulates() {
            self.added.push(action.micro);
        }
        match action.kind {
            ActionKind::Forward => {
                expects(place(stage))?;
                Ok(Some(Value::Number(place(stage + 1))))
            }
            ActionKind::Backward | ActionKind::BackwardInput => {
                if !inputs.is_empty() {
                    expects(-place(stage + 1))?;
                }
                Ok(Some(Value::Number(-place(stage))))
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Ok(None),
        }
    }
}

impl Stage for Leafy {
    type Value = Value;
    type Step = Settings;

    fn begin(&mut self, step: &Arc<Settings>) -> anyhow::Result<()> {
        self.settings = Arc::clone(step);
        self.before = self.steps.len();
        ensure!(self.added.is_empty() && self.own.is_empty() && !self.whole);
        self.trip(When::Begin, "begin".to_owned())?;
        Ok(())
    }

    fn activation_hint(&mut self, hint: ActivationHint) -> anyhow::Result<()> {
        if let ActivationHint::Prefetch(next) = hint {
            let log = self.settings.log.lock();
            let own = log.iter().rfind(|(_, own, _)| *own == self.replica);
            let last = own.map_or("nothing", |(_, _, what)| what);
            let told = format!("{next} after {last}");
            self.settings.prefetched.lock().push((self.replica, told));
        }
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        let when = When::Action(action.kind, action.micro);
        let spoil = self.trip(when, action.to_string())?;
        let output = self.act(action, &inputs)?;
        let spoilt = spoil.then_some(Value::Number(0));
        Ok(output.into_iter().chain(spoilt).collect())
    }

    fn exchange(&mut self, round: usize, from: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        let spoil = self.trip(When::Exchange(round), format!("x{round}({})", self.id))?;
        let mut values = match round {
            0 => {
                ensure!(from.is_empty(), "round 0 takes nothing");
                self.give()?
            }
            1 => self.reduce(from)?,
            2 => {
                self.gather(from)?;
                Vec::new()
            }
            _ => bail!("there are two rounds"),
        };
        values.extend(spoil.then_some(Value::Number(0)));
        Ok(values)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.trip(When::End, "end".to_owned())?;
        if self.settings.training {
            if self.replicas == 1 {
                self.give()?;
                self.whole = true;
            }
            ensure!(self.whole, "the sum of all replicas is not there");
            self.steps.push(std::mem::take(&mut self.own));
        }
        self.added.clear();
        self.whole = false;
        Ok(())
    }

    fn abort(&mut self) {
        self.added.clear();
        self.own.clear();
        self.whole = false;
        self.steps.truncate(self.before);
        self.aborts += 1;
    }

    fn layer(&self) -> Option<String> {
        Some(format!("leafy.{}", self.id))
    }

    fn observer(&self) -> Option<Observer> {
        let name = format!("leafy.{}.{}", self.id, self.replica);
        Some(Box::new(move || Some(name.clone())))
    }
}
