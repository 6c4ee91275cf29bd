//! A lower bound on the makespan of every continuation of a state; for the first state, of every
//! schedule.
//!
//! For each stage and micro-batch, the earliest end of the remaining actions, micro-batch by
//! micro-batch:
//!
//! - F(s, k) begins after F(s, k−1), after its input has arrived, and after the device has done all
//!   forwards before it;
//! - where memory holds at most K micro-batches between F and the end of the backward, after the
//!   backward of micro-batch k−K, and likewise for those between F and gradient;
//! - the gradient G(s, k) comes after G(s, k−1), F(s, k) and G(s+1, k), and after all earlier work
//!   of the device;
//! - the backward ends at least its least time later, and after the one before.
//!
//! After an action follows the remaining work of its device, or the way of the last gradient back
//! to stage 0, whichever ends later. The bound ignores waits of devices in between and busy links.

use super::pipeline::Pipeline;
use super::state::State;

/// Working memory of the bound.
pub(super) struct Remaining<'a> {
    pipeline: &'a Pipeline,
    /// K by stage, see [`StageBytes::in_flight`](super::memory::StageBytes::in_flight).
    in_flight: Vec<[usize; 2]>,
    /// By stage and micro-batch: the earliest end of forward, gradient and backward.
    forward: Vec<f64>,
    gradient: Vec<f64>,
    weight: Vec<f64>,
}

/// A stage's counts and times, and the time at which its device is free.
struct Here {
    f: usize,
    i: usize,
    w: usize,
    free: f64,
}

impl Here {
    fn new(pipeline: &Pipeline, state: &State, stage: usize) -> Self {
        let done = state.done[stage];
        Self {
            f: done.forward.into(),
            i: done.gradient.into(),
            w: done.weight.into(),
            free: state.free(pipeline.stages[stage].device),
        }
    }
}

impl<'a> Remaining<'a> {
    pub(super) fn new(pipeline: &'a Pipeline) -> Self {
        let in_flight = |stage: &super::pipeline::Stage| {
            let device = &pipeline.devices[stage.device];
            let room = |cap: u64| stage.bytes.in_flight(cap.saturating_sub(device.at_first));
            device.cap.map_or([usize::MAX; 2], room)
        };
        let cells = vec![0.0; pipeline.stages.len() * pipeline.micro_batches];
        Self {
            in_flight: pipeline.stages.iter().map(in_flight).collect(),
            pipeline,
            forward: cells.clone(),
            gradient: cells.clone(),
            weight: cells,
        }
    }

    /// Returns the bound for `state`.
    ///
    /// # Complexity
    /// Linear in stages times micro-batches.
    pub(super) fn bound(&mut self, state: &State) -> f64 {
        let (stages, m) = (self.pipeline.stages.len(), self.pipeline.micro_batches);
        let first = state.done.iter().map(|done| done.weight).min();
        let mut bound = self.devices(state);
        for micro in usize::from(first.unwrap_or(0))..m {
            for stage in 0..stages {
                bound = bound.max(self.forward(state, stage, micro));
            }
            for stage in (0..stages).rev() {
                bound = bound.max(self.gradient(state, stage, micro));
                bound = bound.max(self.weight(state, stage, micro));
            }
        }
        bound
    }

    /// Returns the mean time at which devices end if they never wait again.
    pub(super) fn projected(&self, state: &State) -> f64 {
        let mut sum = 0.0;
        for (device, own) in self.pipeline.devices.iter().enumerate() {
            sum += state.free(device);
            for &stage in &own.stages {
                let (times, here) = (
                    &self.pipeline.stages[stage],
                    Here::new(self.pipeline, state, stage),
                );
                let [forwards, gradients_left] =
                    [here.f, here.i].map(|count| (self.pipeline.micro_batches - count) as f64);
                let owed =
                    times.halves.map_or(0.0, |[_, weight]| weight) * (here.i - here.w) as f64;
                sum += forwards * times.forward + gradients_left * times.backward + owed;
            }
        }
        sum / self.pipeline.devices.len() as f64
    }

    /// Returns a bound by the devices' remaining work, after which the last gradient goes back.
    fn devices(&self, state: &State) -> f64 {
        let mut bound = 0.0_f64;
        for (device, own) in self.pipeline.devices.iter().enumerate() {
            let (mut work, mut chain, mut gradients) = (state.free(device), state.free(device), 0);
            for (order, &stage) in own.stages.iter().enumerate() {
                let (times, here) = (
                    &self.pipeline.stages[stage],
                    Here::new(self.pipeline, state, stage),
                );
                let [forwards, gradients_left] =
                    [here.f, here.i].map(|count| (self.pipeline.micro_batches - count) as f64);
                let owed =
                    times.halves.map_or(0.0, |[_, weight]| weight) * (here.i - here.w) as f64;
                let again = times.recompute * f64::from(state.dropped[stage].count_ones());
                work += forwards * times.forward + gradients_left * times.backward + owed + again;
                chain += forwards * times.forward + gradients_left * times.gradient + again;
                if order == 0 {
                    gradients = self.pipeline.micro_batches - here.i;
                }
            }
            bound = bound.max(work);
            if gradients > 0 {
                bound = bound.max(chain + own.tail);
            }
        }
        bound
    }

    /// Returns the work of backwards up to that of `micro`.
    fn released(&self, here: &Here, stage: usize, micro: usize) -> f64 {
        let times = &self.pipeline.stages[stage];
        let owed = here.i.min(micro + 1).saturating_sub(here.w) as f64;
        let whole = (micro + 1).saturating_sub(here.i) as f64;
        times.halves.map_or(0.0, |[_, weight]| weight) * owed + whole * times.backward
    }

    fn forward(&mut self, state: &State, stage: usize, micro: usize) -> f64 {
        let (m, times) = (self.pipeline.micro_batches, &self.pipeline.stages[stage]);
        let here = Here::new(self.pipeline, state, stage);
        if micro < here.f {
            return 0.0;
        }
        let cell = stage * m + micro;
        let come = match stage.checked_sub(1) {
            None => 0.0,
            Some(before) if micro < usize::from(state.done[before].forward) => state.inputs[cell],
            Some(before) => self.forward[cell - m] + self.pipeline.onward(before),
        };
        let forwards = (micro - here.f) as f64 * times.forward;
        let mut start = come.max(here.free + forwards);
        if micro > here.f {
            start = start.max(self.forward[cell - 1]);
        }
        let [between, whole] = self.in_flight[stage];
        if let Some(other) = micro
            .checked_sub(whole.saturating_add(1))
            .filter(|&other| other >= here.w)
        {
            let work = here.free + forwards + self.released(&here, stage, other);
            start = start.max(self.weight[stage * m + other]).max(work);
        }
        if let Some(other) = micro
            .checked_sub(between.saturating_add(1))
            .filter(|&other| other >= here.i)
        {
            start = start.max(self.gradient[stage * m + other]);
        }
        self.forward[cell] = start + times.forward;
        let (left, device) = ((m - micro) as f64, &self.pipeline.devices[times.device]);
        if device.stages.first() == Some(&stage) {
            let work = left * (device.forward + device.backward);
            let chain = left * (device.forward + device.gradient) + device.tail;
            start + work.max(chain)
        } else {
            start + left * (times.forward + times.backward)
        }
    }

    fn gradient(&mut self, state: &State, stage: usize, micro: usize) -> f64 {
        let (m, times) = (self.pipeline.micro_batches, &self.pipeline.stages[stage]);
        let here = Here::new(self.pipeline, state, stage);
        if micro < here.i {
            return 0.0;
        }
        let cell = stage * m + micro;
        let forwards = (micro + 1).saturating_sub(here.f) as f64 * times.forward;
        let mut start = here.free + forwards + (micro - here.i) as f64 * times.gradient;
        if micro >= here.f {
            start = start.max(self.forward[cell]);
        }
        if micro > here.i {
            start = start.max(self.gradient[cell - 1]);
        }
        start = start.max(match state.done.get(stage + 1) {
            Some(behind) if micro >= usize::from(behind.gradient) => {
                self.gradient[cell + m] + self.pipeline.onward(stage)
            }
            None if micro >= here.f => self.forward[cell],
            _ => state.gradients[cell],
        });
        self.gradient[cell] = start + times.gradient;
        let (left, device) = ((m - micro) as f64, &self.pipeline.devices[times.device]);
        let mut bound = start + left * times.backward;
        if device.stages.last() == Some(&stage) {
            bound = bound.max(start + left * device.backward);
            bound = bound.max(start + left * device.gradient + device.tail);
        } else if device.stages.first() == Some(&stage) {
            bound = bound.max(start + left * times.gradient + device.tail);
        }
        bound
    }

    fn weight(&mut self, state: &State, stage: usize, micro: usize) -> f64 {
        let (m, times) = (self.pipeline.micro_batches, &self.pipeline.stages[stage]);
        let here = Here::new(self.pipeline, state, stage);
        if micro < here.w {
            return 0.0;
        }
        let cell = stage * m + micro;
        let forwards = (micro + 1).saturating_sub(here.f) as f64 * times.forward;
        let mut end = here.free + forwards + self.released(&here, stage, micro);
        if micro >= here.i {
            end = end.max(self.gradient[cell] - times.gradient + times.backward);
        }
        if micro > here.w {
            end = end.max(self.weight[cell - 1] + times.apart);
        }
        self.weight[cell] = end;
        end
    }
}
