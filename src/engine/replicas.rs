//! Replicas of a pipeline, and the tasks of each device for the exchange between them.
//!
//! Every stage has a copy in each replica. The copies exchange values in rounds (see
//! [`Stage::exchange`](super::Stage::exchange)): round 0 stands in a device's list directly after
//! the stage's last `B` or `W`, so that its values travel while the device goes on; the later
//! rounds stand after all actions, round 1 of all stages before round 2 of any.
//!
//! ```text
//! p = 1, v = 2, m = 2, two rounds; xk(s) is round k of stage s
//!
//!    0F0 1F0 1B0 0B0 0F1 1F1 1B1 x0(1) 0B1 x0(0) | x1(1) x1(0) | x2(1) x2(0)
//! ```
//!
//! **No deadlock.** The schedule of each replica was proved to complete, and no action waits for an
//! exchange: its inputs are made by other actions, and nothing before it in a list waits, since a
//! round 0 takes nothing. So every device completes its actions and rounds 0. Assume that all
//! devices complete their rounds below k, for k ≥ 1. Round k of a stage waits for round k − 1 of
//! its copies, and stands only behind other rounds k and lower ones. So all inputs of any round k
//! are made, and every device completes its rounds k, in any order of stages. That order is
//! nevertheless the same in all replicas: the order in which the first replica completes its
//! stages, so that what is waited for first is sent first.

use super::mesh::Mesh;
use super::schedules::Schedules;
use super::task::Task;
use super::topology::TopologyError;
use gpipe_partitioner::{Action, CheckedSchedule, DeviceId, MicroId, StageId};
use std::ops::Range;

/// The schedules of all replicas, which have the same stages on the same devices.
#[derive(Debug)]
pub(super) struct Replicas {
    /// By replica; none if it has no micro-batches.
    schedules: Vec<Option<CheckedSchedule>>,
    /// Schedule of the first replica that has micro-batches.
    first: CheckedSchedule,
    pub(super) shares: Shares,
    /// Rounds of an exchange after round 0; none if there is no exchange.
    rounds: usize,
}

/// The devices and micro-batches of replicas.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    pub(super) mesh: Mesh,
    /// By replica: its first micro-batch; the last entry is the number of all micro-batches.
    starts: Vec<usize>,
}

impl Shares {
    fn new(devices: usize, schedules: &[Option<CheckedSchedule>]) -> Self {
        let mut starts = vec![0];
        for schedule in schedules {
            let micros = (schedule.as_ref()).map_or(0, |own| own.schedule().micro_batches());
            starts.push(starts[starts.len() - 1] + micros);
        }
        Self {
            mesh: Mesh::new(devices, schedules.len()),
            starts,
        }
    }

    pub(super) fn micro_batches(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Micro-batches of a replica; empty if the replica does not exist.
    pub(super) fn micro_batches_of(&self, replica: usize) -> Range<usize> {
        let start = |replica: usize| self.starts.get(replica).copied();
        let end = self.micro_batches();
        start(replica).unwrap_or(end)..start(replica + 1).unwrap_or(end)
    }
}

impl Replicas {
    pub(super) fn new(
        schedules: Vec<Option<CheckedSchedule>>,
        rounds: usize,
    ) -> Result<Self, TopologyError> {
        let replicas = schedules.len();
        let Some(first) = schedules.iter().flatten().next().cloned() else {
            return Err(TopologyError::NoMicroBatches { replicas });
        };
        for (replica, schedule) in schedules.iter().enumerate() {
            if let Some(schedule) = schedule.as_ref().filter(|own| !alike(own, &first)) {
                let name = |own: &CheckedSchedule| own.schedule().name().to_owned();
                return Err(TopologyError::Replicas {
                    replica,
                    schedule: name(schedule),
                    first: name(&first),
                });
            }
        }
        let exchanges = replicas > 1 && first.is_training();
        Ok(Self {
            rounds: if exchanges { rounds } else { 0 },
            shares: Shares::new(first.schedule().devices(), &schedules),
            schedules,
            first,
        })
    }

    /// Schedule of the first replica that has micro-batches.
    pub(super) fn first(&self) -> &CheckedSchedule {
        &self.first
    }

    pub(super) fn schedule(&self, replica: usize) -> Option<&CheckedSchedule> {
        self.schedules.get(replica)?.as_ref()
    }

    pub(super) fn into_schedules(self) -> Schedules {
        Schedules::new(self.first, self.schedules)
    }

    /// Whether a round passes values to the next one.
    pub(super) fn sends(&self, round: usize) -> bool {
        round < self.rounds
    }

    /// Number of tasks that follow all actions, in a list of `stages` stages.
    pub(super) fn tail(&self, stages: usize) -> usize {
        stages * self.rounds
    }

    /// Tasks of `device` of the mesh in a step, in order.
    pub(super) fn tasks(&self, device: DeviceId) -> Vec<Task> {
        let mesh = self.shares.mesh;
        let (replica, device) = (mesh.replica_of(device), mesh.of_pipeline(device));
        let mut tasks = Vec::new();
        let actions = self
            .schedule(replica)
            .map(|own| own.schedule().actions(device));
        let actions = actions.unwrap_or_default();
        if self.rounds == 0 {
            tasks.extend(actions.iter().map(|own| self.task(replica, *own)));
            return tasks;
        }
        let mut ends = ends(self.like(replica), device).into_iter().peekable();
        for (at, &action) in actions.iter().enumerate() {
            tasks.push(self.task(replica, action));
            let ended = ends.next_if(|(end, _)| *end == Some(at));
            tasks.extend(ended.map(|(_, stage)| exchange(stage, 0)));
        }
        // Without micro-batches, the rounds 0 of all stages are left.
        tasks.extend(ends.map(|(_, stage)| exchange(stage, 0)));
        tasks.extend(self.behind(device));
        tasks
    }

    /// The tasks of `device` except actions.
    pub(super) fn exchanges(&self, device: DeviceId) -> Vec<Task> {
        if self.rounds == 0 {
            return Vec::new();
        }
        let mesh = self.shares.mesh;
        let (replica, device) = (mesh.replica_of(device), mesh.of_pipeline(device));
        let ends = ends(self.like(replica), device).into_iter();
        let first = ends.map(|(_, stage)| exchange(stage, 0));
        first.chain(self.behind(device)).collect()
    }

    /// The schedule of a replica; if it has no micro-batches, that of the first replica that has.
    fn like(&self, replica: usize) -> &CheckedSchedule {
        self.schedule(replica).unwrap_or(&self.first)
    }

    /// The rounds after all actions of a device of the pipeline.
    fn behind(&self, device: DeviceId) -> Vec<Task> {
        let order = ends(&self.first, device);
        let of = |round| order.iter().map(move |(_, stage)| exchange(*stage, round));
        (1..=self.rounds).flat_map(of).collect()
    }

    fn task(&self, replica: usize, action: Action) -> Task {
        let micro = MicroId(self.shares.starts[replica] + action.micro.index());
        Task::Action(Action { micro, ..action })
    }
}

fn exchange(stage: StageId, round: usize) -> Task {
    Task::Exchange { stage, round }
}

/// Whether two schedules may belong to replicas of one pipeline.
fn alike(one: &CheckedSchedule, other: &CheckedSchedule) -> bool {
    let (a, b) = (one.schedule(), other.schedule());
    let same = |stage| one.device_of(stage) == other.device_of(stage);
    a.devices() == b.devices()
        && a.stages() == b.stages()
        && (0..a.stages()).map(StageId).all(same)
        && one.is_training() == other.is_training()
}

/// For each stage of a device of the pipeline the index of its last backward, in order.
fn ends(schedule: &CheckedSchedule, device: DeviceId) -> Vec<(Option<usize>, StageId)> {
    let actions = schedule.schedule().actions(device);
    let end = |stage: StageId| {
        let adds = |own: &Action| own.stage == stage && own.kind.accumulates();
        actions.iter().rposition(adds)
    };
    let stages = schedule.stages_on(device).into_iter();
    let mut ends: Vec<_> = stages.map(|stage| (end(stage), stage)).collect();
    ends.sort_unstable();
    ends
}
