//! A checked schedule, compiled against a topology.
//!
//! A *slot* is the place of one value in the table of the device that takes it.
//! Slots are numbered in the order in which the device's actions take them, so
//! that an action's inputs lie side by side, and whoever makes a value knows the
//! slot where it will be wanted: running a program looks nothing up.

use super::topology::{Edge, EdgeId, End, Topology, TopologyError};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, StageId, urgencies,
};
use std::collections::HashMap;
use std::ops::Range;

/// A checked schedule compiled against a topology: per device, what each action
/// takes and where what it makes goes. Shared by all threads and by any number of
/// steps.
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
pub struct Program {
    schedule: CheckedSchedule,
    topology: Topology,
    devices: Vec<DeviceProgram>,
    /// Where values from the caller go: per edge from the caller, per micro-batch.
    entries: Vec<(EdgeId, Vec<Place>)>,
    exits: usize,
}

/// What one device does in a step.
#[derive(Debug, Default)]
pub(super) struct DeviceProgram {
    /// The device's stages, in increasing order.
    pub(super) stages: Vec<StageId>,
    pub(super) ops: Vec<Op>,
    ways: Vec<Way>,
    /// Number of values that the device takes in a step.
    pub(super) slots: usize,
}

/// One action, with what it takes and makes.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) action: Action,
    /// The stage's place among the device's stages in increasing order.
    pub(super) seat: usize,
    /// Where devices take turns: the higher, the sooner.
    pub(super) urgency: u32,
    /// The slots of its inputs.
    pub(super) takes: Range<usize>,
    /// How many of them other devices fill.
    pub(super) awaits: usize,
    ways: Range<usize>,
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To an action of the same device.
    Here(usize),
    /// To another device.
    To(Place),
    /// Back to the caller.
    Exit(Exit),
}

/// A slot of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: DeviceId,
    pub(super) slot: usize,
    /// Place of the action that takes it in the device's list.
    pub(super) op: usize,
}

/// What a value that goes back to the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) edge: EdgeId,
    pub(super) micro: MicroId,
    pub(super) gradient: bool,
}

/// One passage of an edge: which edge, which way, which micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    edge: EdgeId,
    gradient: bool,
    micro: MicroId,
}

impl DeviceProgram {
    /// The op behind the one at this place, if it takes up what a forward has left.
    pub(super) fn taken_up_after(&self, at: usize) -> Option<&Op> {
        let next = self.ops.get(at + 1);
        next.filter(|op| op.action.kind.consumes_activations())
    }

    /// Where the values that `op` makes go, in the order in which it makes them.
    pub(super) fn ways(&self, op: &Op) -> &[Way] {
        &self.ways[op.ways.clone()]
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
            .map(|(device, urgencies)| compiler.takes(DeviceId(device), urgencies))
            .collect();
        for (d, device) in devices.iter_mut().enumerate() {
            compiler.ways(DeviceId(d), device)?;
        }
        await_others(&mut devices);
        let entries = compiler.entries()?;
        let exits = devices
            .iter()
            .flat_map(|d| &d.ways)
            .filter(|w| matches!(w, Way::Exit(_)));
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

    /// Places of the values from the caller: per edge, in increasing order, one
    /// per micro-batch.
    pub(super) fn entries(&self) -> &[(EdgeId, Vec<Place>)] {
        &self.entries
    }
}

struct Compiler<'a> {
    schedule: &'a CheckedSchedule,
    topology: &'a Topology,
    taken: HashMap<Key, Place>,
}

impl<'a> Compiler<'a> {
    fn new(schedule: &'a CheckedSchedule, topology: &'a Topology) -> Self {
        Self {
            schedule,
            topology,
            taken: HashMap::new(),
        }
    }

    /// First pass: numbers the slots of what `device` takes.
    fn takes(&mut self, device: DeviceId, urgencies: &[u32]) -> DeviceProgram {
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
                self.taken.insert(
                    key,
                    Place {
                        device,
                        slot: program.slots,
                        op: program.ops.len(),
                    },
                );
                program.slots += 1;
            }
            // Every stage with an action on this device is among its stages.
            let seat = program.stages.binary_search(&action.stage).unwrap_or(0);
            program.ops.push(Op {
                action,
                urgency,
                seat,
                takes: first..program.slots,
                awaits: 0,
                ways: 0..0,
            });
        }
        program
    }

    /// Second pass: where what `device` makes is taken.
    fn ways(&self, device: DeviceId, program: &mut DeviceProgram) -> Result<(), TopologyError> {
        for op in &mut program.ops {
            let first = program.ways.len();
            for (key, to) in self.outputs(op.action) {
                let way = match to {
                    End::Caller => {
                        let Key {
                            edge,
                            gradient,
                            micro,
                        } = key;
                        Way::Exit(Exit {
                            edge,
                            micro,
                            gradient,
                        })
                    }
                    End::Stage(_) => match self.place(key)? {
                        place if place.device == device => Way::Here(place.slot),
                        place => Way::To(place),
                    },
                };
                program.ways.push(way);
            }
            op.ways = first..program.ways.len();
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<(EdgeId, Vec<Place>)>, TopologyError> {
        let edges = self.topology.outgoing(End::Caller);
        edges
            .map(|(edge, _)| Ok((edge, self.entry(edge)?)))
            .collect()
    }

    fn entry(&self, edge: EdgeId) -> Result<Vec<Place>, TopologyError> {
        let micros = (0..self.schedule.schedule().micro_batches()).map(MicroId);
        let place = |micro| {
            self.place(Key {
                edge,
                gradient: false,
                micro,
            })
        };
        micros.map(place).collect()
    }

    fn inputs(&self, action: Action) -> Vec<Key> {
        let here = End::Stage(action.stage);
        match action.kind {
            ActionKind::Forward => self
                .topology
                .incoming(here)
                .map(|(id, _)| key(id, false, action))
                .collect(),
            ActionKind::Backward | ActionKind::BackwardInput => {
                let edges = self.topology.outgoing(here).filter(carries_gradient);
                edges.map(|(id, _)| key(id, true, action)).collect()
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
        }
    }

    fn outputs(&self, action: Action) -> Vec<(Key, End)> {
        let here = End::Stage(action.stage);
        match action.kind {
            ActionKind::Forward => {
                let edges = self.topology.outgoing(here);
                edges
                    .map(|(id, edge)| (key(id, false, action), edge.to))
                    .collect()
            }
            ActionKind::Backward | ActionKind::BackwardInput => {
                let edges = self.topology.incoming(here).filter(carries_gradient);
                edges
                    .map(|(id, edge)| (key(id, true, action), edge.from))
                    .collect()
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
        }
    }

    fn place(&self, key: Key) -> Result<Place, TopologyError> {
        self.taken
            .get(&key)
            .copied()
            .ok_or_else(|| TopologyError::NeverTaken {
                schedule: self.schedule.schedule().name().to_owned(),
                edge: key.edge,
                micro: key.micro,
            })
    }
}

/// Counts what each action takes from other devices.
fn await_others(devices: &mut [DeviceProgram]) {
    let ways: Vec<Way> = devices.iter().flat_map(|d| d.ways.clone()).collect();
    for way in ways {
        if let Way::To(place) = way {
            devices[place.device.index()].ops[place.op].awaits += 1;
        }
    }
}

fn key(edge: EdgeId, gradient: bool, action: Action) -> Key {
    Key {
        edge,
        gradient,
        micro: action.micro,
    }
}

fn carries_gradient((_, edge): &(EdgeId, Edge)) -> bool {
    edge.gradient
}
