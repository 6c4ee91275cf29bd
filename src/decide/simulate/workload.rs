//! Costs to simulate: times given by flags, or a profile cut into stages.

use std::fmt;

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Costs, Machine, Micros, Placement, Problem, Profile, ScheduleKind,
    Shape, Simulation, Solution, StageId, Strategy, When, auto, simulate,
};

use gpipe_partitioner::words::count;

use super::super::Failure;
use super::super::titled_lines::Said;
use super::flag_times::Given;
use super::memory::Limits;

/// Reason why a schedule is impossible with these numbers.
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

/// Source of the times.
#[derive(Debug)]
pub(super) enum Workload {
    /// From flags, the same for every device.
    Given(Box<Given>),
    /// From a profile.
    Profiled(Box<Profiled>),
}

/// A profile, and the way it is cut.
#[derive(Debug)]
pub(super) struct Profiled {
    pub(super) profile: Profile,
    pub(super) strategy: Strategy,
    pub(super) machine: Machine,
    /// The machine without its limits of memory, if it has any.
    pub(super) unlimited: Option<Machine>,
    pub(super) recompute: When,
    pub(super) offload: When,
    pub(super) cuda_graphs: bool,
}

/// A prediction and, for a computed schedule, a lower bound for its shape, cut and memory.
#[derive(Debug)]
pub(super) struct Predicted {
    pub(super) simulation: Simulation,
    pub(super) lower_bound: Option<Micros>,
}

impl From<Simulation> for Predicted {
    fn from(simulation: Simulation) -> Self {
        Self {
            simulation,
            lower_bound: None,
        }
    }
}

impl Predicted {
    pub(super) fn makespan(&self) -> Micros {
        self.simulation.makespan()
    }
}

impl Workload {
    /// Simulates the schedule of `shape` with this work: a computed schedule fits the machine's
    /// memory, another one may not.
    pub(super) fn simulate(&self, kind: ScheduleKind, shape: Shape) -> Result<Predicted, Refusal> {
        match (self, kind) {
            (Self::Given(given), ScheduleKind::Auto) => given.computed(shape),
            (Self::Given(given), _) => {
                let schedule = generated(kind, shape)?;
                let costs = given.costs(shape, kind.trains(), |stage| schedule.device_of(stage));
                Ok(simulate(&schedule, &costs).into())
            }
            (Self::Profiled(profiled), ScheduleKind::Auto) => profiled.computed(shape),
            (Self::Profiled(profiled), _) => {
                let schedule = generated(kind, shape)?;
                let (problem, solution) = profiled.cut(&schedule)?;
                Ok(simulate(&schedule, &costs(&problem, &solution)).into())
            }
        }
    }

    /// Returns the profile, if layers were measured.
    pub(super) fn profile(&self) -> Option<&Profile> {
        match self {
            Self::Given(_) => None,
            Self::Profiled(profiled) => Some(&profiled.profile),
        }
    }

    /// The machine, with its links.
    pub(super) fn machine(&self) -> &Machine {
        match self {
            Self::Given(given) => &given.machine,
            Self::Profiled(profiled) => &profiled.machine,
        }
    }

    /// Samples of a micro-batch, if known.
    pub(super) fn samples(&self) -> Option<usize> {
        match self {
            Self::Given(_) => None,
            Self::Profiled(profiled) => Some(profiled.profile.batch()),
        }
    }

    /// Describes the basis of the numbers in a sentence, for readers who do not see the command.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Given(given) => given.words(),
            Self::Profiled(profiled) => profiled.words(),
        }
    }

    /// Same as `words`, with the flags that would change the basis.
    pub(super) fn said(&self) -> Said {
        let flags = match self {
            Self::Given(_) => {
                "; --forward-us, --input-us, --weight-us and --activation-bytes take yours, --profile measured ones"
            }
            Self::Profiled(_) => "",
        };
        Said::new("times", self.words() + flags)
    }

    /// Which stages recompute.
    pub(super) fn recompute(&self) -> When {
        match self {
            Self::Given(given) => given.recompute,
            Self::Profiled(profiled) => profiled.recompute,
        }
    }

    /// Whether one stage may cost more than another.
    pub(super) fn is_uneven(&self) -> bool {
        matches!(self, Self::Profiled(_))
    }

    /// Whether memory is known.
    pub(super) fn knows_memory(&self) -> bool {
        match self {
            Self::Given(given) => given.activation > Bytes::ZERO,
            Self::Profiled(_) => true,
        }
    }
}

impl Profiled {
    fn words(&self) -> String {
        format!(
            "measured: times and bytes are those of a profile of {} for {}, in micro-batches of {}; {}",
            count(self.profile.layers().len(), "layer"),
            self.profile.device(),
            count(self.profile.batch(), "sample"),
            links(&self.machine)
        )
    }

    /// Returns the best cut that fits the memory; if none does, the best of all.
    fn cut(&self, schedule: &CheckedSchedule) -> Result<(Problem, Solution), Refusal> {
        let batch = self.profile.batch();
        let cut = |machine: &Machine| {
            let problem = Problem::new(&self.profile, batch, machine, schedule)
                .with_recompute(self.recompute)
                .with_offload(self.offload)
                .with_graphs(self.cuda_graphs.then(|| self.profile.graph_replay()));
            let solution = match &self.strategy {
                Strategy::Profile => problem.solve_under(schedule),
                other => problem.solve_by(other),
            }
            .map_err(Refusal::new)?;
            Ok((problem, solution))
        };
        cut(&self.machine).or_else(|refusal| match &self.unlimited {
            Some(machine) => cut(machine),
            None => Err(refusal),
        })
    }

    /// Runs `auto` for the cut of each built-in schedule: the result is no worse than any of them.
    fn computed(&self, shape: Shape) -> Result<Predicted, Refusal> {
        let mut cuts: Vec<(Costs, Solution, Option<Placement>)> = Vec::new();
        let mut refusal = Refusal::default();
        let limits = Limits::of(&self.machine);
        let training = |kind: &ScheduleKind| kind.trains() && *kind != ScheduleKind::Auto;
        for kind in ScheduleKind::ALL.into_iter().filter(training) {
            let Ok(schedule) = kind.generate(shape) else {
                continue;
            };
            match self.cut(&schedule) {
                Ok((problem, solution)) => {
                    let placement = self.placement(&schedule, shape);
                    let same = |(_, other, placed): &(Costs, Solution, Option<Placement>)| {
                        *placed == placement
                            && other.partition == solution.partition
                            && other.recompute == solution.recompute
                            && other.offload == solution.offload
                    };
                    if !cuts.iter().any(same) {
                        let singly = self.singly(&problem, &solution);
                        let singly = singly.map(|costs| (costs, solution.clone(), placement));
                        cuts.push((costs(&problem, &solution), solution, placement));
                        cuts.extend(singly);
                    }
                }
                Err(error) => refusal = error,
            }
        }
        let found = cuts
            .iter()
            .map(|(costs, _, placement)| computed(shape, costs, &limits, *placement));
        let mut best: Option<Predicted> = None;
        for found in found {
            match (found, &best) {
                (Ok(found), Some(best)) if found.makespan() >= best.makespan() => {}
                (Ok(found), _) => best = Some(found),
                (Err(error), _) => refusal = error,
            }
        }
        best.ok_or(refusal)
    }

    /// Returns the costs without the stages' recompute or offload of all micro-batches, if
    /// `solution` has any: a computed schedule may do so for single ones.
    fn singly(&self, problem: &Problem, solution: &Solution) -> Option<Costs> {
        let ways = || solution.recompute.iter().chain(&solution.offload);
        let free = self.recompute != When::Always && self.offload != When::Always;
        let none = vec![false; solution.partition.stages()];
        let any = ways().any(|&way| way);
        (free && any).then(|| problem.stage_costs(&solution.partition, &none, &none))
    }

    /// Returns the placement of the schedule's stages, if it matters to transfer times.
    fn placement(&self, schedule: &CheckedSchedule, shape: Shape) -> Option<Placement> {
        self.machine.nodes()?;
        let own = || (0..shape.stages()).map(|stage| schedule.device_of(StageId(stage)));
        let placed = |placement: &Placement| own().eq(placement.devices(shape));
        [Placement::Loop, Placement::Vee].into_iter().find(placed)
    }
}

/// Describes the transfer times between devices.
pub(super) fn links(machine: &Machine) -> String {
    let inside = machine.link().map_or_else(
        || "transfers between devices take no time".to_owned(),
        |link| format!("the link between devices is {link}"),
    );
    match machine.nodes().filter(|nodes| nodes.count() > 1) {
        Some(nodes) => format!("{inside}, that between nodes {}", nodes.link()),
        None => inside,
    }
}

fn generated(kind: ScheduleKind, shape: Shape) -> Result<CheckedSchedule, Refusal> {
    kind.generate(shape).map_err(Refusal::new)
}

pub(super) fn computed(
    shape: Shape,
    costs: &Costs,
    limits: &Limits,
    placement: Option<Placement>,
) -> Result<Predicted, Refusal> {
    let found = auto(shape, costs, limits.caps(), placement).map_err(Refusal::new)?;
    Ok(Predicted {
        lower_bound: Some(found.lower_bound),
        simulation: found.simulation,
    })
}

fn costs(problem: &Problem, solution: &Solution) -> Costs {
    problem.stage_costs(&solution.partition, &solution.recompute, &solution.offload)
}
