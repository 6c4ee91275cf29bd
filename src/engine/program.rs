//! A checked schedule, compiled against a topology.
//!
//! A *slot* is the index of one value in the table of the device that consumes it. Slots are
//! numbered in the order in which the device's actions consume them, so an action's inputs are
//! contiguous, and the producer of a value knows its slot: nothing is looked up while a program
//! runs.

use super::mesh::Mesh;
use super::replicas::Shares;
use super::schedules::{Recipe, Schedules};
use super::stage::ActivationHint;
use super::task::Task;
use super::topology::{EdgeId, Topology};
use gpipe_partitioner::{CheckedSchedule, DeviceId, MicroId, StageId};
use std::ops::Range;
use std::sync::Arc;

/// A checked schedule, or one for each replica, compiled against a topology: for each action of
/// each device, the slots of its inputs and the destinations of its outputs. It is shared by all
/// threads and by any number of steps.
///
/// A schedule that was not checked is not accepted:
///
/// ```compile_fail,E0308
/// # use gpipe_engine::{Program, Topology};
/// # use gpipe_partitioner::Schedule;
/// let schedule = Schedule::new("unchecked", 1, 1, vec![vec![]]);
/// let program = Program::new(schedule, &Topology::chain(1));
/// ```
#[derive(Debug)]
#[doc(alias = "lowered schedule")]
pub struct Program {
    pub(super) schedules: Schedules,
    pub(super) shares: Shares,
    pub(super) topology: Topology,
    /// By device; empty for devices that it was not compiled for.
    pub(super) devices: Vec<DeviceProgram>,
    /// The slots of the caller's values, in increasing order of edge and micro-batch.
    pub(super) entries: Vec<Entries>,
    pub(super) exits: usize,
}

/// Tasks of one device in a step, with their inputs and outputs.
#[derive(Debug, Default)]
pub(super) struct DeviceProgram {
    /// The device's stages, in increasing order.
    pub(super) stages: Vec<StageId>,
    pub(super) ops: Vec<Op>,
    pub(super) destinations: Vec<Destination>,
    /// Number of values that the device consumes in a step.
    pub(super) slots: usize,
    /// Number of values that the devices before this one consume.
    pub(super) slots_before: usize,
    /// The slots whose values other devices produce, in increasing order, and the producers.
    pub(super) arrivals: Vec<(usize, DeviceId)>,
    /// For a device elsewhere: destinations of its sends to here, in the order of production.
    pub(super) sends: Vec<Address>,
}

/// Destination of a value: a slot of a device, as the program of the step numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The device that consumes the value.
    pub device: DeviceId,
    /// The value's slot in the device's table; see [`Program::arrivals`].
    pub slot: usize,
}

/// One task, with its inputs and outputs.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) task: Task,
    /// The stage's index among the device's stages, in increasing order.
    pub(super) local: usize,
    /// Priority where devices take turns: the highest goes first.
    pub(super) urgency: u32,
    /// The slots of its inputs.
    pub(super) inputs: Range<usize>,
    /// Number of inputs that come from other devices.
    pub(super) remote_inputs: usize,
    /// Hints about activations that stages of the device get before this task: the stage's index,
    /// and the hint.
    pub(super) hints: Vec<(usize, ActivationHint)>,
    pub(super) destinations: Range<usize>,
}

/// Destination of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// A slot of the same device.
    Here(usize),
    /// A slot of another device.
    To(SlotAddress),
    /// The caller.
    Exit(Exit),
}

/// Consumers of the caller's values for one edge and one replica.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) edge: EdgeId,
    /// The replica's first micro-batch; the replica has at least one.
    pub(super) first: MicroId,
    /// One per micro-batch of the replica.
    pub(super) places: Vec<SlotAddress>,
}

/// A slot, and the task that consumes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotAddress {
    pub(super) device: DeviceId,
    pub(super) slot: usize,
    /// The task's index in the device's list.
    pub(super) op: usize,
}

/// Identifies a value that goes back to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) edge: EdgeId,
    pub(super) micro: MicroId,
    pub(super) gradient: bool,
}

impl DeviceProgram {
    /// The destinations of `op`'s outputs, in the order of the outputs.
    pub(super) fn destinations(&self, op: &Op) -> &[Destination] {
        &self.destinations[op.destinations.clone()]
    }
}

impl Program {
    /// Drops the schedules, which have a list for every device and so cost more memory than a part
    /// of the program. `again` makes the schedule of a replica that has micro-batches, once, if it
    /// is asked for ([`Program::schedule`]).
    ///
    /// # Examples
    /// ```
    /// use gpipe_engine::{Program, Topology};
    /// use gpipe_partitioner::{DeviceId, ScheduleKind, Shape};
    ///
    /// let make = || ScheduleKind::OneFOneB.generate(Shape::new(2, 4));
    /// let here = |device| device == DeviceId(0);
    /// let program = Program::part(make()?, &Topology::chain(2), here)?;
    /// let program = program.without_schedules(move |_| make().expect("it was made before"));
    /// assert_eq!(program.schedule().schedule().name(), "1f1b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn without_schedules(
        mut self,
        again: impl Fn(usize) -> CheckedSchedule + Send + Sync + 'static,
    ) -> Self {
        let again: Recipe = Arc::new(again);
        self.schedules.forget(&again);
        self
    }

    /// The schedule; of several replicas, that of the first one that has micro-batches. A program
    /// that does not keep it makes it on the first call, and keeps it from then on.
    pub fn schedule(&self) -> &CheckedSchedule {
        self.schedules.first()
    }

    /// Whether the schedule is kept: [`Program::without_schedules`] drops it until it is asked for.
    pub fn keeps_schedule(&self) -> bool {
        self.schedules.keeps_first()
    }

    /// Same as [`Program::schedule`], but a schedule that is not kept is made anew in each call.
    pub fn schedule_for_now(&self) -> CheckedSchedule {
        self.schedules.first_for_now()
    }

    /// The device of a replica that has `stage`; none if there is no such stage.
    pub fn device_of(&self, stage: StageId) -> Option<DeviceId> {
        self.schedules.placement.get(stage.index()).copied()
    }

    /// Whether this is the program of a training step.
    pub fn is_training(&self) -> bool {
        self.schedules.trains
    }

    /// The schedule of `replica`; none if it has no micro-batches or does not exist.
    pub fn schedule_of(&self, replica: usize) -> Option<&CheckedSchedule> {
        self.schedules.of(replica)
    }

    /// The devices, of all replicas.
    pub fn mesh(&self) -> Mesh {
        self.shares.mesh
    }

    /// Number of micro-batches of all replicas together.
    pub fn micro_batches(&self) -> usize {
        self.shares.micro_batches()
    }

    /// The numbers of the micro-batches of `replica`.
    pub fn micro_batches_of(&self, replica: usize) -> Range<usize> {
        self.shares.micro_batches_of(replica)
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Number of values that a step returns to the caller, including gradients.
    pub fn exits(&self) -> usize {
        self.exits
    }

    pub(super) fn device(&self, device: DeviceId) -> &DeviceProgram {
        &self.devices[device.index()]
    }

    /// Values that `device` gets from other devices in a step: their slots and their producers, in
    /// the order of consumption. Nothing for a device that the program was not compiled for.
    pub fn arrivals(&self, device: DeviceId) -> impl Iterator<Item = (Address, DeviceId)> {
        let arrivals = self.devices.get(device.index());
        let arrivals = arrivals.map_or(&[][..], |program| &program.arrivals);
        arrivals
            .iter()
            .map(move |&(slot, from)| (Address { device, slot }, from))
    }

    /// Values that `device`, which the program was not compiled for, sends to devices that it was
    /// compiled for, in the order of production. A receiver that takes them in this order never
    /// waits for one while another has arrived.
    pub fn sends(&self, device: DeviceId) -> impl Iterator<Item = Address> {
        let program = self.devices.get(device.index());
        program
            .map_or(&[][..], |program| &program.sends)
            .iter()
            .copied()
    }

    /// Number of a value that travels between devices in a step, unique and the same in all
    /// processes: usable as a message tag.
    pub fn number(&self, of: Address) -> usize {
        let program = self.devices.get(of.device.index());
        program.map_or(0, |program| program.slots_before) + of.slot
    }

    /// Index of the task that consumes a value of another device; none if there is no such value.
    pub(super) fn consumer(&self, to: Address) -> Option<usize> {
        let program = self.devices.get(to.device.index())?;
        let arrivals = &program.arrivals;
        arrivals
            .binary_search_by_key(&to.slot, |(slot, _)| *slot)
            .ok()?;
        // Inputs are contiguous, in the order of tasks.
        Some(program.ops.partition_point(|op| op.inputs.end <= to.slot))
    }

    /// The slots of the caller's values, in increasing order of edge and micro-batch.
    pub(super) fn entries(&self) -> &[Entries] {
        &self.entries
    }
}
