//! What is simulated: times that were given, or a profile cut into stages.

use std::fmt;

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Cores, Costs, EdgeTimes, Machine, Micros, Problem, Profile,
    ScheduleKind, Shape, Simulation, Solution, StageId, StageMemory, Strategy, When, auto,
    simulate,
};

use super::super::Failure;

/// Why a schedule is not there for these numbers.
#[derive(Debug, Default)]
pub(super) struct Refusal(String);

impl Refusal {
    pub(super) fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Usage(refusal.0)
    }
}

/// Where times come from.
#[derive(Debug)]
pub(super) enum Workload {
    /// From flags, the same for every device.
    Given(Given),
    /// From a profile.
    Profiled(Box<Profiled>),
}

/// What one micro-batch costs on one device.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) forward: Micros,
    pub(super) input: Micros,
    pub(super) weight: Micros,
    pub(super) activation: Bytes,
    pub(super) transfer: EdgeTimes,
    /// The cores that the devices share.
    pub(super) cores: Option<Cores>,
}

/// A profile, and how it is cut.
#[derive(Debug)]
pub(super) struct Profiled {
    pub(super) profile: Profile,
    pub(super) strategy: Strategy,
    pub(super) machine: Machine,
    pub(super) recompute: When,
    pub(super) offload: When,
    pub(super) cuda_graphs: bool,
}

impl Workload {
    /// The schedule of `shape` with this work.
    pub(super) fn simulate(&self, kind: ScheduleKind, shape: Shape) -> Result<Simulation, Refusal> {
        match (self, kind) {
            (Self::Given(given), ScheduleKind::Auto) => computed(shape, &given.costs(shape)),
            (Self::Given(given), _) => Ok(simulate(&generated(kind, shape)?, &given.costs(shape))),
            (Self::Profiled(profiled), ScheduleKind::Auto) => profiled.computed(shape),
            (Self::Profiled(profiled), _) => {
                let schedule = generated(kind, shape)?;
                let (problem, solution) = profiled.cut(&schedule)?;
                Ok(simulate(&schedule, &costs(&problem, &solution)))
            }
        }
    }

    /// Whether one stage may cost more than another.
    pub(super) fn is_uneven(&self) -> bool {
        matches!(self, Self::Profiled(_))
    }

    /// Whether anything is known about memory.
    pub(super) fn knows_memory(&self) -> bool {
        match self {
            Self::Given(given) => given.activation > Bytes::ZERO,
            Self::Profiled(_) => true,
        }
    }
}

impl Given {
    /// A chunk has a v-th of everything but what it hands on.
    fn costs(&self, shape: Shape) -> Costs {
        let share = 1.0 / shape.chunks as f64;
        let times = [self.forward, self.input, self.weight].map(|time| time * share);
        let memory = StageMemory {
            activation: Bytes(self.activation.get() / shape.chunks as u64),
            ..StageMemory::default()
        };
        let mut costs = Costs::uniform(shape.stages(), times[0], times[1], times[2])
            .with_transfer(self.transfer.occupancy, self.transfer.latency);
        if let Some(cores) = self.cores {
            costs = costs.with_cores(cores);
        }
        (0..shape.stages()).fold(costs, |costs, stage| {
            costs.with_memory(StageId(stage), memory)
        })
    }
}

impl Profiled {
    fn cut(&self, schedule: &CheckedSchedule) -> Result<(Problem, Solution), Refusal> {
        let problem = Problem::new(&self.profile, self.profile.batch(), &self.machine, schedule)
            .with_recompute(self.recompute)
            .with_offload(self.offload)
            .with_graphs(self.cuda_graphs.then(|| self.profile.graph_replay()));
        let solution = problem.solve_by(&self.strategy).map_err(Refusal::new)?;
        Ok((problem, solution))
    }

    /// `auto` for the cut that each built-in schedule asks for: what it finds is no
    /// worse than any of them.
    fn computed(&self, shape: Shape) -> Result<Simulation, Refusal> {
        let mut cuts: Vec<(Costs, Solution)> = Vec::new();
        let mut refusal = Refusal::default();
        let training = |kind: &ScheduleKind| kind.trains() && *kind != ScheduleKind::Auto;
        for kind in ScheduleKind::ALL.into_iter().filter(training) {
            let Ok(schedule) = kind.generate(shape) else {
                continue;
            };
            match self.cut(&schedule) {
                Ok((problem, solution)) => {
                    let same = |(_, other): &(Costs, Solution)| {
                        other.partition == solution.partition
                            && other.recompute == solution.recompute
                            && other.offload == solution.offload
                    };
                    if !cuts.iter().any(same) {
                        cuts.push((costs(&problem, &solution), solution));
                    }
                }
                Err(error) => refusal = error,
            }
        }
        let found = cuts
            .iter()
            .filter_map(|(costs, _)| computed(shape, costs).ok());
        found.min_by_key(Simulation::makespan).ok_or(refusal)
    }
}

fn generated(kind: ScheduleKind, shape: Shape) -> Result<CheckedSchedule, Refusal> {
    kind.generate(shape).map_err(Refusal::new)
}

fn computed(shape: Shape, costs: &Costs) -> Result<Simulation, Refusal> {
    Ok(auto(shape, costs, &[], None)
        .map_err(Refusal::new)?
        .simulation)
}

fn costs(problem: &Problem, solution: &Solution) -> Costs {
    problem.stage_costs(&solution.partition, &solution.recompute, &solution.offload)
}
