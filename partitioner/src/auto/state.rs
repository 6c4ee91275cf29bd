//! A schedule that is decided up to some action of each device.
//!
//! A stage's forwards, input gradients and weight gradients are each in the order of micro-batches,
//! as in all built-in schedules, so three counts per stage record what is done. (If a joint
//! backward saves work on some stages, another order can be slightly shorter.)

use super::pipeline::{Pipeline, Way};
use crate::schedule::{Action, ActionKind};

/// Most micro-batches with individual recompute: a bit each.
const MOST_DROPPED: usize = 64;

/// Next action of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Forward,
    /// A forward whose activations a separate action will recompute.
    Dropping,
    Recompute,
    Joint,
    Input,
    Weight,
}

impl Move {
    /// Progress by this move: each micro-batch on a stage has four units in all.
    pub(super) fn units(self) -> usize {
        match self {
            Self::Forward | Self::Joint => 2,
            Self::Dropping | Self::Recompute | Self::Input | Self::Weight => 1,
        }
    }

    /// Returns the move of an action; a forward keeps its activations.
    pub(super) fn of(kind: ActionKind) -> Self {
        match kind {
            ActionKind::Forward => Self::Forward,
            ActionKind::Recompute => Self::Recompute,
            ActionKind::Backward => Self::Joint,
            ActionKind::BackwardInput => Self::Input,
            ActionKind::BackwardWeight => Self::Weight,
        }
    }

    fn kind(self) -> ActionKind {
        match self {
            Self::Forward | Self::Dropping => ActionKind::Forward,
            Self::Recompute => ActionKind::Recompute,
            Self::Joint => ActionKind::Backward,
            Self::Input => ActionKind::BackwardInput,
            Self::Weight => ActionKind::BackwardWeight,
        }
    }
}

/// Number of micro-batches of a stage with forward, input gradient, and whole backward done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Done {
    pub(super) forward: u16,
    pub(super) gradient: u16,
    pub(super) weight: u16,
}

/// Possible next move of a stage, with its start and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) stage: usize,
    pub(super) what: Move,
    pub(super) start: f64,
    pub(super) end: f64,
}

#[derive(Clone)]
pub(super) struct State {
    pub(super) done: Vec<Done>,
    /// Micro-batches of each stage that are still to be recomputed, as bits.
    pub(super) dropped: Vec<u64>,
    /// Times at which values are ready, by stage and micro-batch.
    pub(super) inputs: Vec<f64>,
    pub(super) gradients: Vec<f64>,
    /// Times at which each device and each link is free.
    pub(super) free: Vec<f64>,
    pub(super) links: Vec<f64>,
    pub(super) bytes: Vec<u64>,
    /// Start of the latest action: none is added before it.
    pub(super) now: f64,
}

impl State {
    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let (stages, devices) = (pipeline.stages.len(), pipeline.devices.len());
        let values = vec![0.0; stages * pipeline.micro_batches];
        Self {
            done: vec![Done::default(); stages],
            dropped: vec![0; stages],
            inputs: values.clone(),
            gradients: values,
            free: vec![0.0; devices],
            links: vec![0.0; pipeline.links],
            bytes: pipeline.devices.iter().map(|own| own.at_first).collect(),
            now: 0.0,
        }
    }

    /// Returns the earliest time at which a device may begin an action.
    pub(super) fn free(&self, device: usize) -> f64 {
        self.free[device].max(self.now)
    }

    pub(super) fn action(&self, stage: usize, what: Move) -> Action {
        let done = self.done[stage];
        let micro = match what {
            Move::Forward | Move::Dropping => done.forward,
            Move::Recompute => self.dropped[stage].trailing_zeros() as u16,
            Move::Joint | Move::Input => done.gradient,
            Move::Weight => done.weight,
        };
        Action::new(stage, what.kind(), usize::from(micro))
    }

    /// Appends the possible next moves of `device`, each as early as its memory permits.
    pub(super) fn choices(&self, pipeline: &Pipeline, device: usize, all: &mut Vec<Choice>) {
        for &stage in &pipeline.devices[device].stages {
            let own = &pipeline.stages[stage];
            let (done, m) = (self.done[stage], pipeline.micro_batches);
            let mut add = |what, ready: f64, duration: f64| {
                if self.fits(pipeline, stage, what) {
                    let start = self.free[device].max(ready);
                    all.push(Choice {
                        stage,
                        what,
                        start,
                        end: start + duration,
                    });
                }
            };
            let cell = |count: u16| stage * m + usize::from(count);
            let above = |count: u16| {
                stage
                    .checked_sub(1)
                    .is_none_or(|s| count < self.done[s].forward)
            };
            if usize::from(done.forward) < m && above(done.forward) {
                let ready = self.inputs[cell(done.forward)];
                add(Move::Forward, ready, own.forward);
                let capped = pipeline.devices[device].cap.is_some();
                if capped && own.bytes.may_drop() && m <= MOST_DROPPED {
                    add(Move::Dropping, ready, own.forward);
                }
            }
            if self.dropped[stage] != 0 {
                add(Move::Recompute, 0.0, own.recompute);
            }
            let next = done.gradient;
            let given = self
                .done
                .get(stage + 1)
                .map_or(done.forward, |s| s.gradient);
            let there = self.dropped[stage] >> next.min(63) & 1 == 0;
            if next < done.forward && next < given && there {
                let ready = self.gradients[cell(next)];
                if let Some(joint) = own.joint.filter(|_| done.weight == next) {
                    add(Move::Joint, ready, joint);
                }
                if let Some([input, _]) = own.halves {
                    add(Move::Input, ready, input);
                }
            }
            if done.weight < next
                && let Some([_, weight]) = own.halves
            {
                add(Move::Weight, 0.0, weight);
            }
        }
    }

    fn fits(&self, pipeline: &Pipeline, stage: usize, what: Move) -> bool {
        let own = &pipeline.stages[stage];
        let Some(cap) = pipeline.devices[own.device].cap else {
            return true;
        };
        let bytes = self.bytes[own.device];
        let step = own.bytes.step(what, self.done[stage].weight == 0);
        bytes + step.during <= cap && bytes.saturating_add_signed(step.after) <= cap
    }

    /// Applies `choice` to the state.
    pub(super) fn apply(&mut self, pipeline: &Pipeline, choice: &Choice) {
        let Choice { stage, what, .. } = *choice;
        let own = &pipeline.stages[stage];
        let step = own.bytes.step(what, self.done[stage].weight == 0);
        let bytes = &mut self.bytes[own.device];
        *bytes = bytes.saturating_add_signed(step.after);
        self.free[own.device] = choice.end;
        self.now = choice.start;
        let done = &mut self.done[stage];
        let m = pipeline.micro_batches;
        match what {
            Move::Forward | Move::Dropping => {
                let micro = usize::from(done.forward);
                done.forward += 1;
                if what == Move::Dropping {
                    self.dropped[stage] |= 1 << micro;
                }
                if stage + 1 == pipeline.stages.len() {
                    self.gradients[stage * m + micro] = choice.end;
                } else {
                    let arrival = self.send(own.onward, choice.end);
                    self.inputs[(stage + 1) * m + micro] = arrival;
                }
            }
            Move::Recompute => self.dropped[stage] &= self.dropped[stage] - 1,
            Move::Joint | Move::Input => {
                let micro = usize::from(done.gradient);
                done.gradient += 1;
                if what == Move::Joint {
                    done.weight += 1;
                }
                if let Some(before) = stage.checked_sub(1) {
                    let arrival = self.send(own.back, choice.end);
                    self.gradients[before * m + micro] = arrival;
                }
            }
            Move::Weight => done.weight += 1,
        }
    }

    fn send(&mut self, way: Option<Way>, end: f64) -> f64 {
        let Some(way) = way else { return end };
        let link = &mut self.links[way.link];
        *link = end.max(*link) + way.occupancy;
        *link + way.latency
    }

    /// Whether every continuation of `other`, which has done the same actions, can follow on this
    /// state no later.
    pub(super) fn is_no_later_than(&self, other: &Self, pipeline: &Pipeline) -> bool {
        let m = pipeline.micro_batches;
        for (device, own) in pipeline.devices.iter().enumerate() {
            let (here, there) = (self.free(device), other.free(device));
            if here > there {
                return false;
            }
            for &stage in &own.stages {
                let done = self.done[stage];
                let came = |of: &[f64], theirs: &[f64], from: u16, to: u16| {
                    let cells =
                        stage * m + usize::from(from)..stage * m + usize::from(to.max(from));
                    let mut pairs = of[cells.clone()].iter().zip(&theirs[cells]);
                    pairs.all(|(a, b)| a.max(here) <= b.max(there))
                };
                let sent = stage
                    .checked_sub(1)
                    .map_or(done.forward, |s| self.done[s].forward);
                let given = self
                    .done
                    .get(stage + 1)
                    .map_or(done.forward, |s| s.gradient);
                if !came(&self.inputs, &other.inputs, done.forward, sent)
                    || !came(&self.gradients, &other.gradients, done.gradient, given)
                {
                    return false;
                }
                for way in [pipeline.stages[stage].onward, pipeline.stages[stage].back] {
                    let link = |state: &Self, free: f64| {
                        way.map_or(0.0, |w| state.links[w.link].max(free))
                    };
                    if link(self, here) > link(other, there) {
                        return false;
                    }
                }
            }
        }
        true
    }
}
