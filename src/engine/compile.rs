//! The compiler of checked schedules against a topology.

use super::mesh::Mesh;
use super::program::{
    Address, Destination, DeviceProgram, Entries, Exit, Op, Program, SlotAddress,
};
use super::replicas::Replicas;
use super::sequence::{add_hints, add_urgencies};
use super::task::Task;
use super::topology::{EdgeId, End, Topology, TopologyError};
use super::uses::{EdgeUse, ExchangeUse, Use, Uses};
use gpipe_partitioner::{CheckedSchedule, DeviceId, MicroId};
use std::collections::HashMap;
use std::ops::Range;

impl Program {
    /// Compiles `schedule` for values that travel along the edges of `topology`.
    ///
    /// # Errors
    /// [`TopologyError::Stages`] when the two disagree on the number of stages.
    pub fn new(schedule: CheckedSchedule, topology: &Topology) -> Result<Self, TopologyError> {
        Self::part(schedule, topology, |_| true)
    }

    /// Same as [`Program::new`], for the devices for which `here` is true; the others are in other
    /// processes. The slots have the same numbers in every process.
    ///
    /// # Complexity
    /// Time grows with the whole schedule, memory with the part of the devices here.
    ///
    /// # Errors
    /// Those of [`Program::new`].
    pub fn part(
        schedule: CheckedSchedule,
        topology: &Topology,
        here: impl Fn(DeviceId) -> bool,
    ) -> Result<Self, TopologyError> {
        Self::replicated(vec![Some(schedule)], topology, 0, here)
    }

    /// Compiles a step of several replicas of a pipeline (data parallelism), for the devices of
    /// their [`Mesh`] for which `here` is true. Each replica has its own schedule, since shares of
    /// a mini-batch may be unequal; one without a schedule has no micro-batches.
    ///
    /// Micro-batches are numbered through in stages, entries, exits, events and errors: those of
    /// replica r follow those of replica r − 1. In training each stage exchanges its gradients with
    /// its copies in `rounds` rounds ([`Stage::exchange`](super::Stage::exchange)); 0 means no
    /// exchange. A single replica has nothing to exchange, and its program is that of
    /// [`Program::part`].
    ///
    /// # Examples
    /// ```
    /// use gpipe_engine::{Program, Topology};
    /// use gpipe_partitioner::{ScheduleKind, Shape};
    ///
    /// // Five micro-batches: the first replica has three, the second two.
    /// let replica = |micros| ScheduleKind::OneFOneB.generate(Shape::new(2, micros)).map(Some);
    /// let replicas = vec![replica(3)?, replica(2)?];
    /// let program = Program::replicated(replicas, &Topology::chain(2), 2, |_| true)?;
    /// assert_eq!((program.mesh().devices(), program.micro_batches()), (4, 5));
    /// assert_eq!(program.micro_batches_of(1), 3..5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TopologyError::Stages`] when a schedule and the topology disagree on the number of
    /// stages, [`TopologyError::Replicas`] when replicas have their stages on different devices,
    /// or only some of them train, [`TopologyError::NoMicroBatches`] when none has a schedule.
    #[doc(alias = "data parallel")]
    pub fn replicated(
        replicas: Vec<Option<CheckedSchedule>>,
        topology: &Topology,
        rounds: usize,
        here: impl Fn(DeviceId) -> bool,
    ) -> Result<Self, TopologyError> {
        compile(Replicas::new(replicas, rounds)?, topology, here)
    }
}

/// Compiles the parts of the devices for which `here` says so.
fn compile(
    replicas: Replicas,
    topology: &Topology,
    here: impl Fn(DeviceId) -> bool,
) -> Result<Program, TopologyError> {
    let plain = replicas.first().schedule();
    if plain.stages() != topology.stages() {
        return Err(TopologyError::Stages {
            schedule: plain.name().to_owned(),
            scheduled: plain.stages(),
            stages: topology.stages(),
        });
    }
    let mut compiler = Compiler::new(&replicas, topology, here);
    let all = (0..replicas.shares.mesh.devices()).map(DeviceId);
    let mut devices: Vec<_> = all.map(|device| compiler.number_inputs(device)).collect();
    let mut slots = 0;
    for device in &mut devices {
        device.slots_before = slots;
        slots += device.slots;
    }
    for (d, device) in devices.iter_mut().enumerate() {
        if compiler.is_here(DeviceId(d)) {
            compiler.find_destinations(DeviceId(d), device)?;
            let replica = replicas.shares.mesh.replica_of(DeviceId(d));
            let first = replicas.shares.micro_batches_of(replica).start;
            add_hints(device, (replicas.schedule(replica), first));
        } else {
            device.sends = compiler.sends(DeviceId(d))?;
        }
    }
    add_urgencies(&replicas, &mut devices);
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
        shares: replicas.shares.clone(),
        schedules: replicas.into_schedules(),
    })
}

struct Compiler<'a> {
    replicas: &'a Replicas,
    mesh: Mesh,
    topology: &'a Topology,
    /// By device: whether its part is compiled.
    here: Vec<bool>,
    /// By replica: whether it has a device whose part is compiled.
    replica_here: Vec<bool>,
    uses: Uses<'a>,
    /// Consumer of each value that a device here produces or consumes.
    consumed: HashMap<EdgeUse, SlotAddress>,
    exchanged: HashMap<ExchangeUse, SlotAddress>,
}

impl<'a> Compiler<'a> {
    fn new(
        replicas: &'a Replicas,
        topology: &'a Topology,
        here: impl Fn(DeviceId) -> bool,
    ) -> Self {
        let mesh = replicas.shares.mesh;
        let devices = 0..mesh.devices();
        let here: Vec<bool> = devices.map(|device| here(DeviceId(device))).collect();
        let by_replica = |replica| here.iter().skip(replica).step_by(mesh.replicas());
        let replica_here = |replica| by_replica(replica).any(|here| *here);
        Self {
            replicas,
            mesh,
            topology,
            replica_here: (0..mesh.replicas()).map(replica_here).collect(),
            here,
            uses: Uses::new(replicas, topology),
            consumed: HashMap::new(),
            exchanged: HashMap::new(),
        }
    }

    fn is_here(&self, device: DeviceId) -> bool {
        self.here[device.index()]
    }

    /// Tasks of `device`, as far as they matter here, and the number of values consumed by the
    /// tasks left out, which come first. Between replicas only exchanges matter, so the time for
    /// replicas elsewhere does not grow with their micro-batches.
    fn tasks(&self, device: DeviceId) -> (Vec<Task>, usize) {
        let replica = self.mesh.replica_of(device);
        if self.replica_here[replica] {
            return (self.replicas.tasks(device), 0);
        }
        let exchanges = self.replicas.exchanges(device);
        (exchanges, self.uses.consumed_by_actions(device))
    }

    /// First pass: numbers the slots of the values that `device` consumes. For a device elsewhere
    /// only the numbers are needed.
    fn number_inputs(&mut self, device: DeviceId) -> DeviceProgram {
        let here = self.is_here(device);
        let mut program = DeviceProgram::default();
        if here {
            let device = self.mesh.of_pipeline(device);
            program.stages = self.replicas.first().stages_on(device);
        }
        let (tasks, consumed) = self.tasks(device);
        program.slots = consumed;
        for (op, task) in tasks.into_iter().enumerate() {
            let (first, mut remote_inputs) = (program.slots, 0);
            for (key, from) in self.uses.inputs(device, task) {
                let slot = program.slots;
                program.slots += 1;
                if here || from.is_some_and(|from| self.is_here(from)) {
                    self.note(key, SlotAddress { device, slot, op });
                }
                if let Some(from) = from.filter(|from| here && *from != device) {
                    remote_inputs += 1;
                    program.arrivals.push((slot, from));
                }
            }
            if here {
                // Every stage with a task on this device is among its stages.
                let local = program.stages.binary_search(&task.stage()).unwrap_or(0);
                program.ops.push(Op {
                    task,
                    urgency: 0,
                    local,
                    inputs: first..program.slots,
                    remote_inputs,
                    hints: Vec::new(),
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
            for (key, to) in self.uses.outputs(device, op.task) {
                let destination = match (key, to) {
                    (Use::Edge(key), None) => Destination::Exit(Exit {
                        edge: key.edge,
                        micro: key.micro,
                        gradient: key.gradient,
                    }),
                    (key, _) => match self.address(key)? {
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

    /// Values that a device elsewhere sends to devices here, in the order of production.
    fn sends(&self, device: DeviceId) -> Result<Vec<Address>, TopologyError> {
        let mut sends = Vec::new();
        for task in self.tasks(device).0 {
            for (key, to) in self.uses.outputs(device, task) {
                if to.is_some_and(|to| self.is_here(to)) {
                    let SlotAddress { device, slot, .. } = self.address(key)?;
                    sends.push(Address { device, slot });
                }
            }
        }
        Ok(sends)
    }

    /// Consumers of the caller's values, for edges that lead to a device here.
    fn entries(&self) -> Result<Vec<Entries>, TopologyError> {
        let mut entries = Vec::new();
        for (edge, ends) in self.topology.outgoing(End::Caller) {
            for replica in 0..self.mesh.replicas() {
                let micros = self.replicas.shares.micro_batches_of(replica);
                let device = self.uses.device(ends.to, replica);
                if !micros.is_empty() && device.is_some_and(|device| self.is_here(device)) {
                    entries.push(Entries {
                        edge,
                        first: MicroId(micros.start),
                        places: self.places(edge, micros)?,
                    });
                }
            }
        }
        Ok(entries)
    }

    fn places(
        &self,
        edge: EdgeId,
        micros: Range<usize>,
    ) -> Result<Vec<SlotAddress>, TopologyError> {
        let address = |micro| {
            self.address(Use::Edge(EdgeUse {
                edge,
                gradient: false,
                micro: MicroId(micro),
            }))
        };
        micros.map(address).collect()
    }

    fn note(&mut self, key: Use, address: SlotAddress) {
        match key {
            Use::Edge(key) => self.consumed.insert(key, address),
            Use::Exchange(key) => self.exchanged.insert(key, address),
        };
    }

    fn address(&self, key: Use) -> Result<SlotAddress, TopologyError> {
        let schedule = || self.replicas.first().schedule().name().to_owned();
        let address = match key {
            Use::Edge(key) => self.consumed.get(&key),
            Use::Exchange(key) => self.exchanged.get(&key),
        };
        address.copied().ok_or_else(|| match key {
            Use::Edge(key) => TopologyError::NeverTaken {
                schedule: schedule(),
                edge: key.edge,
                micro: key.micro,
            },
            Use::Exchange(key) => TopologyError::NeverExchanged {
                schedule: schedule(),
                stage: key.stage,
                round: key.round - 1,
            },
        })
    }
}
