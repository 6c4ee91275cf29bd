//! The compiler of a checked schedule against a topology.

use super::carrier::Address;
use super::program::{Destination, DeviceProgram, Exit, Op, Program, SlotAddress};
use super::stage::OffloadHint;
use super::topology::{Edge, EdgeId, End, Topology, TopologyError};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, StageId, urgencies,
};
use std::collections::HashMap;

/// One use of an edge: forward or as a gradient, by one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EdgeUse {
    edge: EdgeId,
    gradient: bool,
    micro: MicroId,
}

/// Compiles the parts of the devices for which `here` says so.
pub(super) fn compile(
    schedule: CheckedSchedule,
    topology: &Topology,
    here: impl Fn(DeviceId) -> bool,
) -> Result<Program, TopologyError> {
    let plain = schedule.schedule();
    if plain.stages() != topology.stages() {
        return Err(TopologyError::Stages {
            schedule: plain.name().to_owned(),
            scheduled: plain.stages(),
            stages: topology.stages(),
        });
    }
    let mut compiler = Compiler::new(&schedule, topology, here);
    let mut devices: Vec<_> = (urgencies(&schedule).iter().enumerate())
        .map(|(device, urgencies)| compiler.number_inputs(DeviceId(device), urgencies))
        .collect();
    for (d, device) in devices.iter_mut().enumerate() {
        if compiler.is_here(DeviceId(d)) {
            compiler.find_destinations(DeviceId(d), device)?;
            add_hints(device);
        } else {
            device.sends = compiler.sends(DeviceId(d))?;
        }
    }
    let entries = compiler.entries()?;
    let exits = devices
        .iter()
        .flat_map(|d| &d.destinations)
        .filter(|destination| matches!(destination, Destination::Exit(_)));
    let exits = exits.count();
    Ok(Program {
        topology: topology.clone(),
        devices,
        entries,
        exits,
        schedule,
    })
}

/// Compiles, once, what a stage is told about the action after the one that it runs.
fn add_hints(program: &mut DeviceProgram) {
    for at in 1..program.ops.len() {
        let (before, next) = (program.ops[at - 1].action, program.ops[at].action);
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
            program.ops[at - 1].hint = Some((program.ops[at].local, hint));
        }
    }
}

struct Compiler<'a> {
    schedule: &'a CheckedSchedule,
    topology: &'a Topology,
    /// By device: whether its part is compiled.
    here: Vec<bool>,
    /// By stage: the edges into it and out of it.
    edges: Vec<StageEdges>,
    /// Where each value is consumed that a device here produces or consumes.
    consumed: HashMap<EdgeUse, SlotAddress>,
}

#[derive(Default)]
struct StageEdges {
    incoming: Vec<(EdgeId, Edge)>,
    outgoing: Vec<(EdgeId, Edge)>,
}

impl<'a> Compiler<'a> {
    fn new(
        schedule: &'a CheckedSchedule,
        topology: &'a Topology,
        here: impl Fn(DeviceId) -> bool,
    ) -> Self {
        let devices = 0..schedule.schedule().devices();
        let of_stage = |stage| StageEdges {
            incoming: topology.incoming(End::Stage(StageId(stage))).collect(),
            outgoing: topology.outgoing(End::Stage(StageId(stage))).collect(),
        };
        Self {
            schedule,
            topology,
            here: devices.map(|device| here(DeviceId(device))).collect(),
            edges: (0..topology.stages()).map(of_stage).collect(),
            consumed: HashMap::new(),
        }
    }

    fn is_here(&self, device: DeviceId) -> bool {
        self.here[device.index()]
    }

    /// The device of an edge's end; none for the caller.
    fn device(&self, end: End) -> Option<DeviceId> {
        match end {
            End::Caller => None,
            End::Stage(stage) => Some(self.schedule.device_of(stage)),
        }
    }

    /// First pass: numbers the slots of the values that `device` consumes. Of a device
    /// elsewhere only the numbers are wanted.
    fn number_inputs(&mut self, device: DeviceId, urgencies: &[u32]) -> DeviceProgram {
        let here = self.is_here(device);
        let mut program = DeviceProgram::default();
        if here {
            program.stages = self.schedule.stages_on(device);
        }
        let actions = self.schedule.schedule().actions(device).iter().enumerate();
        for ((op, &action), &urgency) in actions.zip(urgencies) {
            let (first, mut remote_inputs) = (program.slots, 0);
            for (key, from) in self.inputs(action) {
                let slot = program.slots;
                program.slots += 1;
                let from = self.device(from);
                if here || from.is_some_and(|from| self.is_here(from)) {
                    let address = SlotAddress { device, slot, op };
                    self.consumed.insert(key, address);
                }
                if let Some(from) = from.filter(|from| here && *from != device) {
                    remote_inputs += 1;
                    program.arrivals.push((slot, from));
                }
            }
            if here {
                // Every stage with an action on this device is among its stages.
                let local = program.stages.binary_search(&action.stage).unwrap_or(0);
                program.ops.push(Op {
                    action,
                    urgency,
                    local,
                    inputs: first..program.slots,
                    remote_inputs,
                    hint: None,
                    destinations: 0..0,
                });
            }
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
                    End::Caller => Destination::Exit(Exit {
                        edge: key.edge,
                        micro: key.micro,
                        gradient: key.gradient,
                    }),
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

    /// What a device elsewhere sends to devices here, in the order in which it produces it.
    fn sends(&self, device: DeviceId) -> Result<Vec<Address>, TopologyError> {
        let mut sends = Vec::new();
        for &action in self.schedule.schedule().actions(device) {
            for (key, to) in self.outputs(action) {
                if self.device(to).is_some_and(|to| self.is_here(to)) {
                    let SlotAddress { device, slot, .. } = self.address(key)?;
                    sends.push(Address { device, slot });
                }
            }
        }
        Ok(sends)
    }

    /// Where the caller's values are consumed, of edges that lead to a device here.
    fn entries(&self) -> Result<Vec<(EdgeId, Vec<SlotAddress>)>, TopologyError> {
        let edges = self.topology.outgoing(End::Caller);
        let to = |edge: &Edge| self.device(edge.to);
        edges
            .filter(|(_, edge)| to(edge).is_some_and(|device| self.is_here(device)))
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

    /// What an action consumes, and who produces it.
    fn inputs(&self, action: Action) -> impl Iterator<Item = (EdgeUse, End)> + use<> {
        let edges = &self.edges[action.stage.index()];
        match action.kind {
            ActionKind::Forward => uses(&edges.incoming, action, |edge| edge.from),
            ActionKind::Backward | ActionKind::BackwardInput => {
                uses(&edges.outgoing, action, |edge| edge.to)
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new().into_iter(),
        }
    }

    /// What an action produces, and who consumes it.
    fn outputs(&self, action: Action) -> impl Iterator<Item = (EdgeUse, End)> + use<> {
        let edges = &self.edges[action.stage.index()];
        match action.kind {
            ActionKind::Forward => uses(&edges.outgoing, action, |edge| edge.to),
            ActionKind::Backward | ActionKind::BackwardInput => {
                uses(&edges.incoming, action, |edge| edge.from)
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new().into_iter(),
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

/// How an action uses edges, with the end of each that `other` names: all of them forward, as
/// gradients those that carry one.
fn uses(
    edges: &[(EdgeId, Edge)],
    action: Action,
    other: impl Fn(&Edge) -> End,
) -> std::vec::IntoIter<(EdgeUse, End)> {
    let gradient = action.kind != ActionKind::Forward;
    let edges = edges.iter().filter(|(_, edge)| edge.gradient || !gradient);
    let uses = edges.map(|(edge, ends)| {
        let (edge, micro) = (*edge, action.micro);
        let edge_use = EdgeUse {
            edge,
            gradient,
            micro,
        };
        (edge_use, other(ends))
    });
    uses.collect::<Vec<_>>().into_iter()
}
