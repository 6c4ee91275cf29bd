//! Input of the solver: layers, devices and the schedule's demands.

use super::demands::{backwards, offloading, ways};
use super::memory::{Held, Ways};
use super::{Transfer, When};
use crate::check::CheckedSchedule;
use crate::cost::StageTimes;
use crate::ids::{DeviceId, StageId};
use crate::machine::{Device, Machine, Neighbours, Nodes};
use crate::profile::{LayerCost, Profile};
use crate::tree::gradient_sets;
use crate::units::{Bytes, Micros};

/// Bytes of optimizer state per byte of parameters for `AdamW`: two moments.
pub(crate) const ADAMW_STATE: f64 = 2.0;

/// A stage before layers are assigned to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) device: DeviceId,
    /// Peak numbers of micro-batches that it holds.
    pub(super) held: Held,
    /// Whether its backward runs in halves.
    pub(super) split: bool,
    /// Whether any of its micro-batches would leave if it offloads.
    pub(super) leaves: bool,
}

/// A chain of layers to be cut for a schedule and a machine.
///
/// # Examples
/// ```
/// use gpipe_partitioner::solve::Problem;
/// use gpipe_partitioner::{LayerProfile, Machine, Micros, Profile, ScheduleKind, Shape, LayerTimes};
///
/// let layer = |us: f64| {
///     let time = Micros::new(us).expect("a time");
///     LayerProfile::new("layer", LayerTimes::new(time, time, time))
/// };
/// let profile = Profile::new("cpu", 8, [1.0, 1.0, 1.0, 3.0, 1.0].map(layer).to_vec())?;
/// let schedule = ScheduleKind::OneFOneB.generate(Shape::new(3, 6))?;
/// let solution = Problem::new(&profile, 8, &Machine::new(3)?, &schedule).solve()?;
/// assert_eq!(solution.partition.balance(), [3, 1, 1]);
/// assert_eq!(solution.bottleneck.get(), 9.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) costs: Vec<LayerCost>,
    pub(super) input: Bytes,
    pub(super) machine: Machine,
    pub(super) stages: Vec<Slot>,
    pub(super) training: bool,
    pub(super) ways: Ways,
    pub(super) transfer: Transfer,
    pub(super) recompute: When,
    pub(super) offload: When,
    /// Time of the host for an action in a CUDA graph, if graphs are used.
    pub(super) replay: Option<Micros>,
    pub(super) state: f64,
    micro_batches: usize,
    /// Sets of gradients that a stage has at a time.
    pub(super) sets: u64,
}

impl Problem {
    /// Creates the problem of the layers of `profile`, with micro-batches of `batch` samples, on
    /// `machine` under `schedule`: its placement, its peaks in flight and the form of its
    /// backwards.
    ///
    /// Transfers are [`Waited`](Transfer::Waited) for unless every stage holds more micro-batches
    /// than there are stages from it to the end (or all micro-batches). Recompute is
    /// [`Auto`](When::Auto), the optimizer `AdamW`; nothing is offloaded, and there are no CUDA
    /// graphs.
    ///
    /// # Panics
    /// If the schedule runs on more devices than the machine has.
    pub fn new(
        profile: &Profile,
        batch: usize,
        machine: &Machine,
        schedule: &CheckedSchedule,
    ) -> Self {
        let devices = schedule.schedule().devices();
        assert!(devices <= machine.devices().len(), "a device short");
        let mut costs = profile.costs(batch);
        if !schedule.is_training() {
            costs.iter_mut().for_each(LayerCost::drop_backward);
        }
        let problem = Self {
            costs,
            input: profile.input_for(batch),
            machine: machine.clone(),
            stages: Vec::new(),
            training: schedule.is_training(),
            ways: ways(schedule),
            transfer: Transfer::Waited,
            recompute: When::Auto,
            offload: When::Never,
            replay: None,
            state: ADAMW_STATE,
            micro_batches: schedule.schedule().micro_batches(),
            sets: 1,
        };
        problem.under(schedule)
    }

    /// Returns the same problem under another schedule with as many stages and micro-batches.
    #[must_use]
    pub(crate) fn under(mut self, schedule: &CheckedSchedule) -> Self {
        let plan = schedule.schedule();
        let (split, backward) = backwards(schedule);
        // Only a link to the host's memory lets anything leave.
        let offloading = match self.machine.host_link() {
            Some(_) => offloading(schedule),
            None => vec![(0, false); plan.stages()],
        };
        let slot = |stage: usize| Slot {
            device: schedule.device_of(StageId(stage)),
            held: Held {
                in_flight: schedule.peak_in_flight(StageId(stage)) as u64,
                backward: backward[stage],
                offloading: offloading[stage].0,
            },
            split: split[stage],
            leaves: offloading[stage].1,
        };
        self.stages = (0..plan.stages()).map(slot).collect();
        let deep = |(stage, slot): (usize, &Slot)| {
            slot.held.in_flight >= plan.micro_batches().min(plan.stages() - stage + 1) as u64
        };
        let overlapped = !schedule.is_training() || self.stages.iter().enumerate().all(deep);
        self.transfer = if overlapped {
            Transfer::Overlapped
        } else {
            Transfer::Waited
        };
        self.ways = ways(schedule);
        self
    }

    /// Sets the rule for the offload of activations, if the machine has a link to the host's
    /// memory.
    #[must_use]
    pub fn with_offload(mut self, offload: When) -> Self {
        if self.training && self.machine.host_link().is_some() {
            self.offload = offload;
        }
        self
    }

    /// Uses CUDA graphs on all stages that can have them: with layers that can be captured, and
    /// neither recompute nor offload. The host then takes `replay` per action.
    #[must_use]
    pub fn with_graphs(mut self, replay: Option<Micros>) -> Self {
        self.replay = replay.filter(|_| self.training);
        self
    }

    /// Sets the rule for recompute.
    #[must_use]
    pub fn with_recompute(mut self, recompute: When) -> Self {
        self.recompute = recompute;
        self
    }

    /// Sets the effect of transfers.
    #[must_use]
    pub fn with_transfer(mut self, transfer: Transfer) -> Self {
        self.transfer = transfer;
        self
    }

    /// Sets an optimizer that keeps `state` bytes per byte of parameters: 2 for `AdamW`, 1 for SGD
    /// with momentum, 0 for plain SGD.
    #[must_use]
    pub fn with_optimizer_state(mut self, state: f64) -> Self {
        self.state = state.clamp(0.0, 1e3);
        self
    }

    /// Sums gradients in a tree of `leaves` leaves. Their memory is that of all
    /// [sets](gradient_sets) that can exist at a time, from a stage's first gradients on: an upper
    /// bound until the last leaf. Replicas share the leaves.
    #[must_use]
    pub fn with_tree(mut self, leaves: usize) -> Self {
        let own = (leaves / self.machine.replicas()).max(1);
        self.sets = gradient_sets(own, self.micro_batches);
        self
    }

    pub(crate) fn devices(&self) -> &[Device] {
        self.machine.devices()
    }

    pub(crate) fn neighbours(&self) -> Neighbours {
        self.machine.neighbours()
    }

    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.machine.nodes()
    }
}

impl LayerCost {
    fn drop_backward(&mut self) {
        (self.input, self.weight, self.backward, self.recompute) = Default::default();
        self.host = StageTimes {
            forward: self.host.forward,
            ..StageTimes::default()
        };
    }
}
