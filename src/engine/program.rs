//! A checked schedule, compiled against a topology.
//!
//! A *slot* is the index of one value in the table of the device that consumes it.
//! Slots are numbered in the order in which the device's actions consume them, so
//! an action's inputs are contiguous, and the producer of a value knows the slot
//! that it goes to: nothing is looked up while a program runs.

use super::stage::OffloadHint;
use super::topology::{Edge, EdgeId, End, Topology, TopologyError};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, StageId, urgencies,
};
use std::collections::HashMap;
use std::ops::Range;

/// A checked schedule compiled against a topology: for each action of each device,
/// the slots of its inputs and the destinations of its outputs. It is shared by all
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
    schedule: CheckedSchedule,
    topology: Topology,
    devices: Vec<DeviceProgram>,
    /// The slots of the caller's values: per edge from the caller, per micro-batch.
    entries: Vec<(EdgeId, Vec<SlotAddress>)>,
    exits: usize,
}

/// What one device does in a step.
#[derive(Debug, Default)]
pub(super) struct DeviceProgram {
    /// The device's stages, in increasing order.
    pub(super) stages: Vec<StageId>,
    pub(super) ops: Vec<Op>,
    destinations: Vec<Destination>,
    /// Number of values that the device consumes in a step.
    pub(super) slots: usize,
}

/// One action, with its inputs and outputs.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) action: Action,
    /// The stage's index among the device's stages, in increasing order.
    pub(super) local: usize,
    /// Its priority where devices take turns: the highest goes first.
    pub(super) urgency: u32,
    /// The slots of its inputs.
    pub(super) inputs: Range<usize>,
    /// How many of its inputs come from other devices.
    pub(super) remote_inputs: usize,
    /// What a stage of the device is told before this action about the one after it:
    /// the stage's index, and the hint.
    pub(super) hint: Option<(usize, OffloadHint)>,
    destinations: Range<usize>,
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// A slot of the same device.
    Here(usize),
    /// A slot of another device.
    To(SlotAddress),
    /// The caller.
    Exit(Exit),
}

/// A slot, and the action that consumes its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotAddress {
    pub(super) device: DeviceId,
    pub(super) slot: usize,
    /// The action's index in the device's list.
    pub(super) op: usize,
}

/// Identifies a value that goes back to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) edge: EdgeId,
    pub(super) micro: MicroId,
    pub(super) gradient: bool,
}

/// One use of an edge: forward or as a gradient, by one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EdgeUse {
    edge: EdgeId,
    gradient: bool,
    micro: MicroId,
}

impl DeviceProgram {
    /// Compiles, once, what a stage is told about the action after the one that it runs.
    fn add_hints(&mut self) {
        for at in 1..self.ops.len() {
            let (before, next) = (self.ops[at - 1].action, self.ops[at].action);
            if next.kind.consumes_activations() {
                let forward = Action {
                    kind: ActionKind::Forward,
                    ..next
                };
                let hint = if before == forward {
                    OffloadHint::Keep(next)
                } else {
                    OffloadHint::Prefetch(next)
                };
                self.ops[at - 1].hint = Some((self.ops[at].local, hint));
            }
        }
    }

    /// The destinations of `op`'s outputs, in the order of the outputs.
    pub(super) fn destinations(&self, op: &Op) -> &[Destination] {
        &self.destinations[op.destinations.clone()]
    }
}

impl Program {
    /// Compiles `schedule` for values that travel along the edges of `topology`.
    ///
    /// # Errors
    /// [`TopologyError::Stages`] when the two disagree on the number of stages.
    pub fn new(schedule: CheckedSchedule, topology: &Topology) -> Result<Self, TopologyError> {
        let plain = schedule.schedule();
        if plain.stages() != topology.stages() {
            return Err(TopologyError::Stages {
                schedule: plain.name().to_owned(),
                scheduled: plain.stages(),
                stages: topology.stages(),
            });
        }
        let mut compiler = Compiler::new(&schedule, topology);
        let mut devices: Vec<_> = (urgencies(&schedule).iter().enumerate())
            .map(|(device, urgencies)| compiler.number_inputs(DeviceId(device), urgencies))
            .collect();
        for (d, device) in devices.iter_mut().enumerate() {
            compiler.find_destinations(DeviceId(d), device)?;
        }
        count_remote_inputs(&mut devices);
        devices.iter_mut().for_each(DeviceProgram::add_hints);
        let entries = compiler.entries()?;
        let exits = devices
            .iter()
            .flat_map(|d| &d.destinations)
            .filter(|destination| matches!(destination, Destination::Exit(_)));
        let exits = exits.count();
        Ok(Self {
            topology: topology.clone(),
            devices,
            entries,
            exits,
            schedule,
        })
    }

    /// The schedule.
    pub fn schedule(&self) -> &CheckedSchedule {
        &self.schedule
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How many values a step gives back to the caller, gradients included.
    pub fn exits(&self) -> usize {
        self.exits
    }

    pub(super) fn devices(&self) -> usize {
        self.devices.len()
    }

    pub(super) fn device(&self, device: DeviceId) -> &DeviceProgram {
        &self.devices[device.index()]
    }

    /// The slots of the caller's values: per edge, in increasing order, one per
    /// micro-batch.
    pub(super) fn entries(&self) -> &[(EdgeId, Vec<SlotAddress>)] {
        &self.entries
    }
}

struct Compiler<'a> {
    schedule: &'a CheckedSchedule,
    topology: &'a Topology,
    /// Where each value is consumed.
    consumed: HashMap<EdgeUse, SlotAddress>,
}

impl<'a> Compiler<'a> {
    fn new(schedule: &'a CheckedSchedule, topology: &'a Topology) -> Self {
        Self {
            schedule,
            topology,
            consumed: HashMap::new(),
        }
    }

    /// First pass: numbers the slots of the values that `device` consumes.
    fn number_inputs(&mut self, device: DeviceId, urgencies: &[u32]) -> DeviceProgram {
        let mut stages: Vec<StageId> = self.schedule.stages_on(device).into_iter().collect();
        stages.sort_unstable();
        let mut program = DeviceProgram {
            stages,
            ..DeviceProgram::default()
        };
        let actions = self.schedule.schedule().actions(device).iter();
        for (&action, &urgency) in actions.zip(urgencies) {
            let first = program.slots;
            for key in self.inputs(action) {
                self.consumed.insert(
                    key,
                    SlotAddress {
                        device,
                        slot: program.slots,
                        op: program.ops.len(),
                    },
                );
                program.slots += 1;
            }
            // Every stage with an action on this device is among its stages.
            let local = program.stages.binary_search(&action.stage).unwrap_or(0);
            program.ops.push(Op {
                action,
                urgency,
                local,
                inputs: first..program.slots,
                remote_inputs: 0,
                hint: None,
                destinations: 0..0,
            });
        }
        program
    }

    /// Second pass: finds where the values that `device` produces are consumed.
    fn find_destinations(
        &self,
        device: DeviceId,
        program: &mut DeviceProgram,
    ) -> Result<(), TopologyError> {
        for op in &mut program.ops {
            let first = program.destinations.len();
            for (key, to) in self.outputs(op.action) {
                let destination = match to {
                    End::Caller => {
                        let EdgeUse {
                            edge,
                            gradient,
                            micro,
                        } = key;
                        Destination::Exit(Exit {
                            edge,
                            micro,
                            gradient,
                        })
                    }
                    End::Stage(_) => match self.address(key)? {
                        address if address.device == device => Destination::Here(address.slot),
                        address => Destination::To(address),
                    },
                };
                program.destinations.push(destination);
            }
            op.destinations = first..program.destinations.len();
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<(EdgeId, Vec<SlotAddress>)>, TopologyError> {
        let edges = self.topology.outgoing(End::Caller);
        edges
            .map(|(edge, _)| Ok((edge, self.entry(edge)?)))
            .collect()
    }

    fn entry(&self, edge: EdgeId) -> Result<Vec<SlotAddress>, TopologyError> {
        let micros = (0..self.schedule.schedule().micro_batches()).map(MicroId);
        let address = |micro| {
            self.address(EdgeUse {
                edge,
                gradient: false,
                micro,
            })
        };
        micros.map(address).collect()
    }

    fn inputs(&self, action: Action) -> Vec<EdgeUse> {
        let here = End::Stage(action.stage);
        match action.kind {
            ActionKind::Forward => self
                .topology
                .incoming(here)
                .map(|(id, _)| edge_use(id, false, action))
                .collect(),
            ActionKind::Backward | ActionKind::BackwardInput => {
                let edges = self.topology.outgoing(here).filter(carries_gradient);
                edges.map(|(id, _)| edge_use(id, true, action)).collect()
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
        }
    }

    fn outputs(&self, action: Action) -> Vec<(EdgeUse, End)> {
        let here = End::Stage(action.stage);
        match action.kind {
            ActionKind::Forward => {
                let edges = self.topology.outgoing(here);
                edges
                    .map(|(id, edge)| (edge_use(id, false, action), edge.to))
                    .collect()
            }
            ActionKind::Backward | ActionKind::BackwardInput => {
                let edges = self.topology.incoming(here).filter(carries_gradient);
                edges
                    .map(|(id, edge)| (edge_use(id, true, action), edge.from))
                    .collect()
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
        }
    }

    fn address(&self, key: EdgeUse) -> Result<SlotAddress, TopologyError> {
        self.consumed
            .get(&key)
            .copied()
            .ok_or_else(|| TopologyError::NeverTaken {
                schedule: self.schedule.schedule().name().to_owned(),
                edge: key.edge,
                micro: key.micro,
            })
    }
}

/// Counts the inputs of each action that come from other devices.
fn count_remote_inputs(devices: &mut [DeviceProgram]) {
    let destinations: Vec<Destination> = devices
        .iter()
        .flat_map(|d| d.destinations.clone())
        .collect();
    for destination in destinations {
        if let Destination::To(address) = destination {
            devices[address.device.index()].ops[address.op].remote_inputs += 1;
        }
    }
}

fn edge_use(edge: EdgeId, gradient: bool, action: Action) -> EdgeUse {
    EdgeUse {
        edge,
        gradient,
        micro: action.micro,
    }
}

fn carries_gradient((_, edge): &(EdgeId, Edge)) -> bool {
    edge.gradient
}
