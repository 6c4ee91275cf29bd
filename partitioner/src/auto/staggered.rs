//! Schedules for steps in a row without a barrier: each device works from its first action to its
//! last with as few waits as possible, and begins and ends later than the device before it.
//!
//! As many forwards as memory permits fill the time until the first gradient arrives; then forwards
//! and gradients alternate, and weight gradients fill waits. Three switches decide questions for
//! which no choice dominates, and all eight settings are tried.
//!
//! *Source*: the heuristic of Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 3.1, as in the authors' program, including the switches. The bubble rates of their table 5
//! ("ZB-1p" and "ZB-2p") are those of these schedules.

use super::pipeline::{Pipeline, Way};
use super::state::Move;
use crate::ids::{MicroId, StageId};
use crate::schedule::{Action, ActionKind};

/// Choices that hold for the whole schedule.
#[derive(Clone, Copy)]
struct Switches {
    /// The first gradient does not wait for a forward that began before it is ready.
    gradient_first: bool,
    /// A device far ahead of the next one skips a forward if a gradient arrives soon.
    leaves_out: bool,
    /// A weight gradient begins even if it ends after a device's input is ready, also if the device
    /// has waited less than others.
    fills: bool,
}

/// Returns the devices' lists under each setting of the switches, without those for which memory is
/// short. There must be one stage per device.
///
/// # Complexity
/// Linear in the number of actions, times the number of devices.
pub(super) fn lists(pipeline: &Pipeline) -> impl Iterator<Item = Vec<Vec<Action>>> {
    let settings = (0..8).map(|bits| Switches {
        gradient_first: bits & 1 != 0,
        leaves_out: bits & 2 != 0,
        fills: bits & 4 != 0,
    });
    settings.filter_map(|switches| Writer::new(pipeline, switches).write())
}

/// Progress of a device.
#[derive(Clone, Default)]
struct Own {
    list: Vec<Action>,
    forwards: usize,
    gradients: usize,
    weights: usize,
    free: f64,
    bytes: u64,
    /// Time waited since its first action.
    waited: f64,
    /// End of each forward, and of each input gradient.
    ends: [Vec<f64>; 2],
}

struct Writer<'a> {
    pipeline: &'a Pipeline,
    switches: Switches,
    devices: Vec<Own>,
}

impl<'a> Writer<'a> {
    fn new(pipeline: &'a Pipeline, switches: Switches) -> Self {
        let devices = pipeline.devices.iter().map(|device| Own {
            bytes: device.at_first,
            ..Own::default()
        });
        Self {
            pipeline,
            switches,
            devices: devices.collect(),
        }
    }

    /// Returns the lists; none if memory is short.
    fn write(mut self) -> Option<Vec<Vec<Action>>> {
        let stages = self.devices.len();
        self.warm_up()?;
        for _ in 1..self.pipeline.micro_batches {
            self.forwards()?;
            for stage in (0..stages).rev() {
                self.gradient(stage)?;
            }
        }
        for stage in 0..stages {
            self.all_weights(stage);
        }
        Some(self.devices.into_iter().map(|own| own.list).collect())
    }

    /// Puts the forwards before the first gradient, and that gradient.
    fn warm_up(&mut self) -> Option<()> {
        let stages = self.devices.len();
        for stage in 0..stages {
            self.put_if_it_fits(stage, Move::Forward)?;
        }
        let mut more = vec![0; stages];
        let mut there = f64::NEG_INFINITY;
        for stage in (0..stages).rev() {
            let own = &self.devices[stage];
            let (forward, gradient) = (
                self.time(stage, Move::Forward),
                self.time(stage, Move::Input),
            );
            let (mut free, mut bytes) = (own.free, own.bytes);
            // Earliest start of the first gradient; the last stage can start at once.
            let ready = there + self.comes_back(stage);
            let step = self.pipeline.stages[stage].bytes.step(Move::Forward, false);
            while stage + 1 < stages
                && own.forwards + more[stage] < self.pipeline.micro_batches
                && self.is_within(stage, bytes + step.during)
            {
                let enough = if self.switches.gradient_first {
                    free + forward > ready
                } else {
                    free >= ready
                };
                if enough {
                    break;
                }
                free += forward;
                bytes = bytes.saturating_add_signed(step.after);
                more[stage] += 1;
            }
            there = free.max(ready) + gradient;
        }
        for stage in 1..stages {
            // Fewer than the stage before, unless that has done all its forwards.
            let before = more[stage - 1];
            if before + 1 < self.pipeline.micro_batches {
                more[stage] = more[stage].min(before.saturating_sub(1));
            }
        }
        for (stage, more) in more.into_iter().enumerate() {
            for _ in 0..more {
                self.put(stage, Move::Forward);
            }
        }
        for stage in (0..stages).rev() {
            self.put_if_it_fits(stage, Move::Input)?;
        }
        Some(())
    }

    /// Puts a forward on each stage that takes one now.
    fn forwards(&mut self) -> Option<()> {
        let stages = self.devices.len();
        let mut takes: Vec<bool> = (0..stages).map(|stage| self.takes_forward(stage)).collect();
        for stage in (0..stages - 1).rev() {
            takes[stage] &= takes[stage + 1];
        }
        for stage in (0..stages).filter(|stage| takes[*stage]) {
            self.make_room(stage, Move::Forward)?;
            let ready = self.ready(stage, Move::Forward);
            if stage > 0 {
                self.fill(stage, ready);
            }
            self.put(stage, Move::Forward);
        }
        Some(())
    }

    /// Whether a stage takes a forward now, instead of staying free for its next gradient.
    fn takes_forward(&self, stage: usize) -> bool {
        let own = &self.devices[stage];
        if own.forwards == self.pipeline.micro_batches {
            return false;
        }
        let next = match self.devices.get(stage + 1) {
            Some(next) if own.forwards >= next.forwards + 2 && self.switches.leaves_out => next,
            _ => return true,
        };
        let [forward, gradient] =
            [Move::Forward, Move::Input].map(|what| self.time(stage + 1, what));
        let comes = next.free + forward + gradient + self.comes_back(stage);
        if own.free >= comes {
            return false;
        }
        let ends = own.free + self.time(stage, Move::Forward) + self.room_takes(stage);
        ends <= comes || comes - own.free > self.most_waited() - own.waited
    }

    /// Returns the time of the weight gradients that make room for a forward.
    fn room_takes(&self, stage: usize) -> f64 {
        let own = &self.devices[stage];
        let bytes = &self.pipeline.stages[stage].bytes;
        let (forward, weight) = (
            bytes.step(Move::Forward, false),
            bytes.step(Move::Weight, false),
        );
        let (mut here, mut left, mut takes) = (own.bytes, own.gradients - own.weights, 0.0);
        while left > 0 && !self.is_within(stage, here + forward.during) {
            here = here.saturating_add_signed(weight.after);
            left -= 1;
            takes += self.time(stage, Move::Weight);
        }
        takes
    }

    fn gradient(&mut self, stage: usize) -> Option<()> {
        self.make_room(stage, Move::Input)?;
        if stage + 1 < self.devices.len() {
            let ready = self.ready(stage, Move::Input);
            self.fill(stage, ready);
        }
        // No other stage waits for the first stage's gradients.
        if stage == 0 && self.devices[0].forwards == self.pipeline.micro_batches {
            self.all_weights(0);
        }
        self.put(stage, Move::Input);
        Some(())
    }

    /// Puts weight gradients into the time until `ready`.
    fn fill(&mut self, stage: usize, ready: f64) {
        let takes = self.time(stage, Move::Weight);
        while self.has_weights(stage) && self.devices[stage].free + takes <= ready {
            self.put(stage, Move::Weight);
        }
        let waits = ready - self.devices[stage].free;
        if self.has_weights(stage) && waits > 0.0 {
            let may_wait = waits <= self.most_waited() - self.devices[stage].waited;
            if !may_wait || self.switches.fills {
                self.put(stage, Move::Weight);
            }
        }
    }

    fn all_weights(&mut self, stage: usize) {
        while self.has_weights(stage) {
            self.put(stage, Move::Weight);
        }
    }

    fn has_weights(&self, stage: usize) -> bool {
        self.devices[stage].weights < self.devices[stage].gradients
    }

    /// Makes room by weight gradients; none if none are left.
    fn make_room(&mut self, stage: usize, what: Move) -> Option<()> {
        while !self.fits(stage, what) {
            if !self.has_weights(stage) {
                return None;
            }
            self.put(stage, Move::Weight);
        }
        Some(())
    }

    fn put_if_it_fits(&mut self, stage: usize, what: Move) -> Option<()> {
        self.fits(stage, what).then(|| self.put(stage, what))
    }

    fn fits(&self, stage: usize, what: Move) -> bool {
        let step = self.pipeline.stages[stage].bytes.step(what, false);
        self.is_within(stage, self.devices[stage].bytes + step.during)
    }

    fn is_within(&self, stage: usize, bytes: u64) -> bool {
        self.pipeline.devices[stage]
            .cap
            .is_none_or(|cap| bytes <= cap)
    }

    fn time(&self, stage: usize, what: Move) -> f64 {
        let times = self.pipeline.stages[stage].times;
        match what {
            Move::Forward | Move::Dropping => times.forward.get(),
            Move::Recompute => times.recompute.get(),
            Move::Joint => times.backward.get(),
            Move::Input => times.input.get(),
            Move::Weight => times.weight.get(),
        }
    }

    /// Returns the transfer time of a gradient from the next stage.
    fn comes_back(&self, stage: usize) -> f64 {
        let behind = self.pipeline.stages.get(stage + 1);
        behind.and_then(|own| own.back).map_or(0.0, Way::alone)
    }

    /// Returns when the next action of this kind has its input from another stage.
    fn ready(&self, stage: usize, what: Move) -> f64 {
        let own = &self.devices[stage];
        match what {
            Move::Forward if stage > 0 => {
                self.devices[stage - 1].ends[0][own.forwards] + self.pipeline.onward(stage - 1)
            }
            Move::Input if stage + 1 < self.devices.len() => {
                self.devices[stage + 1].ends[1][own.gradients] + self.comes_back(stage)
            }
            _ => 0.0,
        }
    }

    /// Returns the longest time that any device has waited.
    fn most_waited(&self) -> f64 {
        let waited = self.devices.iter().map(|own| own.waited);
        waited.fold(0.0, f64::max)
    }

    fn put(&mut self, stage: usize, what: Move) {
        let (ready, takes) = (self.ready(stage, what), self.time(stage, what));
        let own = &mut self.devices[stage];
        let start = own.free.max(ready);
        if own.forwards > 0 {
            own.waited += start - own.free;
        }
        own.free = start + takes;
        let first = what == Move::Weight && own.weights == 0;
        let step = self.pipeline.stages[stage].bytes.step(what, first);
        own.bytes = own.bytes.saturating_add_signed(step.after);
        let (count, kind) = match what {
            Move::Input => (&mut own.gradients, ActionKind::BackwardInput),
            Move::Weight => (&mut own.weights, ActionKind::BackwardWeight),
            _ => (&mut own.forwards, ActionKind::Forward),
        };
        own.list.push(Action {
            stage: StageId(stage),
            kind,
            micro: MicroId(*count),
        });
        *count += 1;
        match kind {
            ActionKind::Forward => own.ends[0].push(own.free),
            ActionKind::BackwardInput => own.ends[1].push(own.free),
            _ => {}
        }
    }
}
