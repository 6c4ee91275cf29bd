//! A greedy list scheduler over the real times.
//!
//! Time advances from event to event (a device is done, a value arrives). A free device takes,
//! among actions whose input is ready and which fit its memory, the backward of the earliest
//! micro-batch, else a forward of its highest stage, else a weight pass; a policy varies this.
//! Stage 0 takes a new micro-batch only while fewer than a *window* are in flight, which reserves
//! memory for later stages.

use super::policy::Policy;
use crate::check::CheckedSchedule;
use crate::cost::{Costs, StageTimes};
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, ActionKind, Placement, Schedule, Shape};
use crate::simulate::change;
use crate::units::{Bytes, Micros};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Relative tolerance of limits, against rounding in f64.
const ROUNDED: f64 = 1e-9;

/// Returns the schedule of `policy`; none if devices end up waiting for memory that is never freed, or
/// as soon as it cannot end within `limit` microseconds.
pub(super) fn run(
    shape: Shape,
    placement: Placement,
    costs: &Costs,
    caps: &[Option<Bytes>],
    (policy, limit): (Policy, f64),
) -> Option<CheckedSchedule> {
    let mut greedy = ListScheduler::new(shape, placement, costs, policy);
    for (device, cap) in greedy.devices.iter_mut().zip(caps) {
        device.cap = *cap;
    }
    let limit = limit * (1.0 + ROUNDED);
    while let Some(Reverse((now, device))) = greedy.events.pop() {
        if greedy.devices[device].free <= now {
            if now.get() + greedy.devices[device].left.least() > limit {
                return None;
            }
            greedy.act(device, now);
        }
    }
    let lists = greedy
        .devices
        .into_iter()
        .map(|device| device.list)
        .collect();
    let schedule = Schedule::new("auto", shape.stages(), shape.micro_batches, lists);
    // If all forwards fit and no backward does, the lists check as a schedule of inference.
    let checked = schedule.check().ok();
    checked.filter(CheckedSchedule::is_training)
}

/// Work that a device has left, in microseconds.
struct Left {
    all: f64,
    /// Forwards and input gradients only.
    chain: f64,
    /// Number of input gradients.
    gradients: usize,
    /// Way of a gradient from the device's lowest stage to the first one.
    tail: f64,
}

impl Left {
    fn new(own: &[usize], micro_batches: usize, (costs, policy): (&Costs, Policy)) -> Self {
        let sum = |of: &dyn Fn(StageTimes) -> f64| -> f64 {
            own.iter()
                .map(|&stage| of(costs.stage(StageId(stage))))
                .sum()
        };
        let gradient = policy.gradient();
        let chain = sum(&|times| times.forward.get() + times.of(gradient).get());
        let weight = if policy.split {
            sum(&|times| times.weight.get())
        } else {
            0.0
        };
        let before = 0..own.iter().copied().min().unwrap_or(0);
        let back = before.map(|stage| costs.stage(StageId(stage)).of(gradient).get());
        let each = micro_batches as f64;
        Self {
            all: each * (chain + weight),
            chain: each * chain,
            gradients: own.len() * micro_batches,
            tail: back.sum(),
        }
    }

    /// Least time until the end of the step.
    fn least(&self) -> f64 {
        match self.gradients {
            0 => self.all,
            _ => self.all.max(self.chain + self.tail),
        }
    }

    fn finish(&mut self, action: Action, time: Micros) {
        self.all -= time.get();
        if action.kind != ActionKind::BackwardWeight {
            self.chain -= time.get();
        }
        self.gradients -= usize::from(action.kind.gives_input_gradient());
    }
}

struct DeviceState {
    stages: Vec<usize>,
    left: Left,
    list: Vec<Action>,
    free: Micros,
    bytes: Bytes,
    cap: Option<Bytes>,
    owed: VecDeque<Action>,
}

struct ListScheduler<'a> {
    shape: Shape,
    placement: Placement,
    costs: &'a Costs,
    policy: Policy,
    devices: Vec<DeviceState>,
    /// The next micro-batch of each stage's forward and backward.
    forward: Vec<usize>,
    backward: Vec<usize>,
    /// Times at which input and gradient of (stage, micro-batch) are ready, once known.
    input: Vec<Option<Micros>>,
    gradient: Vec<Option<Micros>>,
    links: HashMap<(usize, usize), Micros>,
    events: BinaryHeap<Reverse<(Micros, usize)>>,
}

impl<'a> ListScheduler<'a> {
    fn new(shape: Shape, placement: Placement, costs: &'a Costs, policy: Policy) -> Self {
        let stages = shape.stages();
        let device = |device| {
            let own: Vec<usize> = (0..shape.chunks)
                .map(|chunk| {
                    placement
                        .stage(chunk, DeviceId(device), shape.devices)
                        .index()
                })
                .collect();
            DeviceState {
                bytes: own
                    .iter()
                    .map(|&stage| costs.memory(StageId(stage)).fixed())
                    .sum(),
                left: Left::new(&own, shape.micro_batches, (costs, policy)),
                stages: own,
                list: Vec::new(),
                free: Micros::ZERO,
                cap: None,
                owed: VecDeque::new(),
            }
        };
        let mut input = vec![None; stages * shape.micro_batches];
        input[..shape.micro_batches].fill(Some(Micros::ZERO));
        Self {
            shape,
            placement,
            costs,
            policy,
            devices: (0..shape.devices).map(device).collect(),
            forward: vec![0; stages],
            backward: vec![0; stages],
            gradient: vec![None; input.len()],
            input,
            links: HashMap::new(),
            events: (0..shape.devices)
                .map(|device| Reverse((Micros::ZERO, device)))
                .collect(),
        }
    }

    fn act(&mut self, device: usize, now: Micros) {
        let Some(action) = self.choose(device, now) else {
            return;
        };
        let time = self.costs.stage(action.stage).of(action.kind);
        let end = now + time;
        let change = change(self.costs, action, false, true);
        let here = &mut self.devices[device];
        here.left.finish(action, time);
        here.list.push(action);
        here.free = end;
        here.bytes = here.bytes + change.takes - change.gives;
        let stage = action.stage.index();
        match action.kind {
            ActionKind::Forward => {
                self.forward[stage] += 1;
                let last = stage + 1 == self.shape.stages();
                self.send(
                    device,
                    action,
                    if last { None } else { Some(stage + 1) },
                    end,
                );
            }
            ActionKind::Backward | ActionKind::BackwardInput => {
                if action.kind == ActionKind::BackwardInput {
                    here.owed.push_back(action.with(ActionKind::BackwardWeight));
                }
                self.backward[stage] += 1;
                self.send(device, action, stage.checked_sub(1), end);
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => {
                here.owed.pop_front();
            }
        }
        self.events.push(Reverse((end, device)));
    }

    /// Sends the output of `action` to stage `to`; the last stage's output returns to it as its own
    /// gradient.
    fn send(&mut self, device: usize, action: Action, to: Option<usize>, end: Micros) {
        let onward = action.kind == ActionKind::Forward;
        let stage = match to {
            Some(to) => to,
            None if onward => action.stage.index(),
            None => return,
        };
        let target = self
            .placement
            .device(StageId(stage), self.shape.devices)
            .index();
        let mut arrival = end;
        if target != device {
            let edge = self.costs.edge(StageId(stage.min(action.stage.index())));
            let link = self.links.entry((device, target)).or_default();
            *link = end.max(*link) + edge.occupancy;
            arrival = *link + edge.latency;
        }
        let cell = stage * self.shape.micro_batches + action.micro.index();
        let values = if onward && to.is_some() {
            &mut self.input
        } else {
            &mut self.gradient
        };
        values[cell] = Some(arrival);
        self.events.push(Reverse((arrival, target)));
    }

    fn choose(&self, device: usize, now: Micros) -> Option<Action> {
        let forward = self.best_forward(device, now);
        let backward = self.best_backward(device, now);
        let first = if self.policy.eager {
            forward.or(backward)
        } else {
            backward.or(forward)
        };
        first.or_else(|| {
            let weight = *self.devices[device].owed.front()?;
            let end = now + self.costs.stage(weight.stage).weight;
            let soon = self.policy.patient && self.next_arrival(device).is_some_and(|at| at < end);
            (!soon || !self.roomy(device)).then_some(weight)
        })
    }

    /// Whether another micro-batch fits without a weight pass first.
    fn roomy(&self, device: usize) -> bool {
        let stages = self.devices[device].stages.iter();
        stages
            .into_iter()
            .all(|&stage| self.fits(device, Action::new(stage, ActionKind::Forward, 0)))
    }

    fn fits(&self, device: usize, action: Action) -> bool {
        let takes = change(self.costs, action, false, true).takes;
        let here = &self.devices[device];
        let working = self.costs.memory(action.stage).working;
        here.cap
            .is_none_or(|cap| here.bytes + takes + working <= cap)
    }

    fn value(&self, values: &[Option<Micros>], stage: usize, micro: usize) -> Option<Micros> {
        if micro < self.shape.micro_batches {
            values[stage * self.shape.micro_batches + micro]
        } else {
            None
        }
    }

    /// Returns a forward of the highest stage.
    fn best_forward(&self, device: usize, now: Micros) -> Option<Action> {
        let ready = |stage: &usize| {
            let micro = self.forward[*stage];
            let open = *stage > 0 || micro < self.backward[0] + self.policy.window;
            open && self
                .value(&self.input, *stage, micro)
                .is_some_and(|at| at <= now)
        };
        let stages = self.devices[device].stages.iter().copied().filter(ready);
        let action = |stage: usize| Action::new(stage, ActionKind::Forward, self.forward[stage]);
        stages
            .map(action)
            .filter(|&action| self.fits(device, action))
            .max_by_key(|a| a.stage)
    }

    /// Returns the backward of the earliest micro-batch, on the highest stage if several.
    fn best_backward(&self, device: usize, now: Micros) -> Option<Action> {
        let kind = self.policy.gradient();
        let ready = |stage: &usize| {
            self.value(&self.gradient, *stage, self.backward[*stage])
                .is_some_and(|at| at <= now)
        };
        let stages = self.devices[device].stages.iter().copied().filter(ready);
        let action = |stage: usize| Action::new(stage, kind, self.backward[stage]);
        let fitting = stages
            .map(action)
            .filter(|&action| self.fits(device, action));
        fitting.min_by_key(|action| (action.micro, Reverse(action.stage)))
    }

    /// Returns when the next input of the device arrives, if known.
    fn next_arrival(&self, device: usize) -> Option<Micros> {
        let stages = self.devices[device].stages.iter();
        let arrivals = stages.flat_map(|&stage| {
            let input = self
                .value(&self.input, stage, self.forward[stage])
                .filter(|_| stage > 0);
            [
                input,
                self.value(&self.gradient, stage, self.backward[stage]),
            ]
        });
        arrivals
            .flatten()
            .filter(|&at| at > self.devices[device].free)
            .min()
    }
}
