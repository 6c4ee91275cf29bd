//! Programs of several steps in a row, without a barrier between steps.
//!
//! Every device runs its list once per step. Directly after a stage's last backward of a step
//! stands a task that closes the step there: the stage updates its weights and goes on with the
//! next step, however far other stages are.
//!
//! ```text
//! p = 1, v = 2, m = 1, two steps; c(s) closes a step on stage s
//!
//!    0F0 1F0 1B0 c(1) 0B0 c(0) | 0F0 1F0 1B0 c(1) 0B0 c(0)
//! ```
//!
//! The engine treats all of this as one step: its values have slots of their own, a failure stops
//! and aborts all stages, and there is one report at the end. The protocol is unchanged, and so is
//! a program of one step.
//!
//! **No deadlock.** A task that closes a step waits for nothing. A value of step k is made and
//! consumed by actions of step k. If all devices complete their actions of the steps before k, then
//! the actions of step k run as in the schedule of one step, which was proved to complete; and a
//! device reaches step k when it has completed its own actions of the steps before.

use super::program::{Destination, DeviceProgram, Entries, Exit, Op, Program, SlotAddress};
use super::schedules::Schedules;
use super::task::Task;
use super::topology::TopologyError;
use gpipe_partitioner::{MicroId, StageId};

impl Program {
    /// Returns this program, run `steps` times in a row without a barrier between the steps: a
    /// stage goes on with the next step when its own gradients of one are complete
    /// ([`Stage::close_step`](super::Stage::close_step)).
    ///
    /// Entries and exits of micro-batch i of step k have the number k·m + i; stages, events and
    /// errors call it micro-batch i, as in every step. Each device's events start with those of
    /// step 0. [`Program::schedule`] remains that of one step.
    ///
    /// # Complexity
    /// Time and memory grow with the number of steps.
    ///
    /// # Errors
    /// [`TopologyError::InARow`] unless this is the program of a training step of one replica,
    /// compiled for all devices.
    #[doc(alias = "post-validation")]
    pub fn in_a_row(&self, steps: usize) -> Result<Self, TopologyError> {
        let here = |device: &DeviceProgram| !device.ops.is_empty();
        let closes = self.devices.iter().any(|device| {
            let close = |op: &Op| matches!(op.task, Task::Close { .. });
            device.ops.iter().any(close)
        });
        let all_here = self.devices.iter().all(here);
        if self.mesh().replicas() > 1 || !self.is_training() || !all_here || closes {
            return Err(TopologyError::InARow {
                schedule: self.schedules.name.clone(),
            });
        }
        let row = Row::new(self, steps);
        let devices = 0..self.devices.len();
        let schedule = self.schedule_for_now();
        let mut slots = 0;
        let mut devices: Vec<DeviceProgram> = devices.map(|device| row.device(device)).collect();
        for device in &mut devices {
            device.slots_before = slots;
            slots += device.slots;
        }
        Ok(Self {
            schedules: Schedules::new(schedule.clone(), vec![Some(schedule)]),
            shares: self.shares.in_a_row(steps),
            topology: self.topology.clone(),
            entries: self.entries.iter().map(|own| row.entries(own)).collect(),
            exits: self.exits * steps,
            devices,
        })
    }
}

/// One step, and the number of its repetitions.
struct Row<'a> {
    step: &'a Program,
    steps: usize,
    micro_batches: usize,
    /// By device and stage on it: index of the stage's last action in the list of one step.
    ends: Vec<Vec<usize>>,
    /// Added per later step, so that every action of an earlier step is more urgent.
    urgency: u32,
}

impl<'a> Row<'a> {
    fn new(step: &'a Program, steps: usize) -> Self {
        let ends = |device: &DeviceProgram| {
            let last = |local: usize| device.ops.iter().rposition(|op| op.local == local);
            (0..device.stages.len()).filter_map(last).collect()
        };
        let ops = step.devices.iter().flat_map(|device| &device.ops);
        Self {
            step,
            steps,
            micro_batches: step.micro_batches(),
            ends: step.devices.iter().map(ends).collect(),
            urgency: ops.map(|op| op.urgency).max().unwrap_or(0) + 1,
        }
    }

    /// Index of a task of `step` in the device's list of all steps.
    fn place(&self, device: usize, step: usize, op: usize) -> usize {
        let ends = &self.ends[device];
        let closed = ends.iter().filter(|end| **end < op).count();
        step * (self.step.devices[device].ops.len() + ends.len()) + op + closed
    }

    fn address(&self, step: usize, to: SlotAddress) -> SlotAddress {
        let device = to.device.index();
        SlotAddress {
            slot: step * self.step.devices[device].slots + to.slot,
            op: self.place(device, step, to.op),
            ..to
        }
    }

    fn destination(&self, device: usize, step: usize, to: Destination) -> Destination {
        match to {
            Destination::Here(slot) => {
                Destination::Here(step * self.step.devices[device].slots + slot)
            }
            Destination::To(to) => Destination::To(self.address(step, to)),
            Destination::Exit(exit) => Destination::Exit(Exit {
                micro: MicroId(step * self.micro_batches + exit.micro.index()),
                ..exit
            }),
        }
    }

    /// Returns the task for one of the steps.
    fn op(&self, device: &DeviceProgram, step: usize, op: &Op) -> Op {
        let slots = step * device.slots;
        let destinations = step * device.destinations.len();
        let later = u32::try_from(self.steps - 1 - step).unwrap_or(u32::MAX);
        Op {
            urgency: later
                .saturating_mul(self.urgency)
                .saturating_add(op.urgency),
            inputs: slots + op.inputs.start..slots + op.inputs.end,
            destinations: destinations + op.destinations.start..destinations + op.destinations.end,
            ..op.clone()
        }
    }

    fn device(&self, device: usize) -> DeviceProgram {
        let own = &self.step.devices[device];
        let mut ops = Vec::with_capacity(self.steps * (own.ops.len() + own.stages.len()));
        let (mut destinations, mut arrivals) = (Vec::new(), Vec::new());
        for step in 0..self.steps {
            for (at, op) in own.ops.iter().enumerate() {
                let op = self.op(own, step, op);
                let close = self.ends[device]
                    .contains(&at)
                    .then(|| close(own, step, &op));
                ops.push(op);
                ops.extend(close);
            }
            let all = own.destinations.iter();
            destinations.extend(all.map(|to| self.destination(device, step, *to)));
            let all = own.arrivals.iter();
            arrivals.extend(all.map(|(slot, from)| (step * own.slots + slot, *from)));
        }
        DeviceProgram {
            stages: own.stages.clone(),
            ops,
            destinations,
            slots: self.steps * own.slots,
            slots_before: 0,
            arrivals,
            sends: Vec::new(),
        }
    }

    fn entries(&self, own: &Entries) -> Entries {
        let of_step = |step| own.places.iter().map(move |to| self.address(step, *to));
        Entries {
            edge: own.edge,
            first: own.first,
            places: (0..self.steps).flat_map(of_step).collect(),
        }
    }
}

/// Returns the task that closes a step on the stage of `last`, its last action, with its urgency.
fn close(device: &DeviceProgram, step: usize, last: &Op) -> Op {
    let stage: StageId = device.stages[last.local];
    Op {
        task: Task::Close { stage, step },
        inputs: last.inputs.end..last.inputs.end,
        remote_inputs: 0,
        hints: Vec::new(),
        destinations: last.destinations.end..last.destinations.end,
        ..last.clone()
    }
}
