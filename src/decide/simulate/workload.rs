//! What is simulated: times that were given, or a profile cut into stages.

use std::fmt;

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Costs, DeviceId, Machine, Micros, Placement, Problem, Profile,
    ScheduleKind, Shape, Simulation, Solution, StageId, StageMemory, StageTimes, Strategy, VOTES,
    When, auto, simulate,
};

use gpipe_partitioner::words::count;

use super::super::Failure;
use super::super::said::Said;
use super::memory::Limits;

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
    Given(Box<Given>),
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
    /// What it hands on.
    pub(super) output: Bytes,
    /// What it has of gradients of parameters.
    pub(super) gradients: Bytes,
    pub(super) recompute: When,
    pub(super) offload: When,
    pub(super) machine: Machine,
}

/// A profile, and how it is cut.
#[derive(Debug)]
pub(super) struct Profiled {
    pub(super) profile: Profile,
    pub(super) strategy: Strategy,
    pub(super) machine: Machine,
    /// The same where memory is not limited, if it is.
    pub(super) unlimited: Option<Machine>,
    pub(super) recompute: When,
    pub(super) offload: When,
    pub(super) cuda_graphs: bool,
}

/// A prediction, and, of a computed schedule, what none of its shape, cut and memory is under.
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
    fn makespan(&self) -> Micros {
        self.simulation.makespan()
    }
}

impl Workload {
    /// The schedule of `shape` with this work: a computed one fits the machine's memory, another one
    /// may not.
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

    /// What it was made from, where layers were measured.
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

    /// Of a micro-batch, where it is known.
    pub(super) fn samples(&self) -> Option<usize> {
        match self {
            Self::Given(_) => None,
            Self::Profiled(profiled) => Some(profiled.profile.batch()),
        }
    }

    /// What the numbers are made of, in a sentence for who does not see the command.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Given(given) => given.words(),
            Self::Profiled(profiled) => profiled.words(),
        }
    }

    /// The same, and with which flags it would be other ones.
    pub(super) fn said(&self) -> Said {
        let flags = match self {
            Self::Given(_) => {
                "; --forward-us, --input-us, --weight-us and --activation-bytes take yours, --profile measured ones"
            }
            Self::Profiled(_) => "",
        };
        Said::new("times", self.words() + flags)
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
    fn words(&self) -> String {
        let output = match self.output {
            Bytes::ZERO => String::new(),
            output => format!(", and it hands on {output}"),
        };
        let activation = match self.activation {
            Bytes::ZERO => "what it keeps until its backward is not counted".to_owned(),
            activation => format!("it keeps {activation} until its backward"),
        };
        format!(
            "assumed, not measured: each device takes {} for the forward of a micro-batch, {} for the input \
             half of its backward and {} for the weight half; {activation}{output}; {}",
            self.forward,
            self.input,
            self.weight,
            links(&self.machine)
        )
    }

    /// A chunk has a v-th of everything but what it hands on.
    fn costs(&self, shape: Shape, trains: bool, device: impl Fn(StageId) -> DeviceId) -> Costs {
        let share = 1.0 / shape.chunks as f64;
        let times = [self.forward, self.input, self.weight].map(|time| time * share);
        let part = |bytes: Bytes| Bytes(bytes.get() / shape.chunks as u64);
        let memory = self.memory(part(self.activation), trains);
        let mut costs = Costs::uniform(shape.stages(), times[0], times[1], times[2]);
        if self.recompute == When::Always {
            let again = StageTimes {
                backward: times[0] + times[1] + times[2],
                input: times[0] + times[1],
                ..costs.stage(StageId(0))
            };
            costs = Costs::new(vec![again; shape.stages()]);
        }
        if let Some(cores) = self.machine.cores() {
            costs = costs.with_cores(cores);
        }
        if let Some(cards) = self.machine.cards() {
            costs = costs.with_cards(cards);
        }
        if let Some(joins) = self.machine.joins(VOTES) {
            costs = costs.with_joins(joins);
        }
        for stage in (0..shape.stages()).map(StageId) {
            let next = StageId(stage.index() + 1);
            if next.index() < shape.stages() {
                let times = self
                    .machine
                    .transfer(device(stage), device(next), self.output);
                costs = costs.with_edge(stage, times);
            }
            if self.machine.replicas() > 1 {
                let times = self.machine.exchange(device(stage), part(self.gradients));
                costs = costs.with_exchange(stage, times);
            }
            costs = costs.with_memory(stage, memory);
            if let Some(link) = self.machine.host_link() {
                costs = match self.offload {
                    When::Never => costs,
                    When::Auto => {
                        costs.with_single_offload(stage, link.transfer(memory.offloadable, 1))
                    }
                    When::Always => costs.with_offload(stage, link.transfer(memory.offloaded, 1)),
                };
            }
        }
        costs
    }

    /// Of a stage that keeps so much of each micro-batch. A recompute starts from what the stage
    /// before hands on.
    fn memory(&self, activation: Bytes, trains: bool) -> StageMemory {
        let again = activation - self.output;
        let memory = StageMemory {
            activation,
            sent: self.output,
            ..StageMemory::default()
        };
        if !trains && self.output > Bytes::ZERO {
            // Without a backward there are a stage's input and its output.
            let activation = activation.min(self.output + self.output);
            return StageMemory {
                activation,
                ..memory
            };
        }
        let memory = match self.recompute {
            When::Never => memory,
            When::Auto => StageMemory {
                recomputable: again,
                ..memory
            },
            When::Always => StageMemory {
                activation: activation - again,
                recomputed: again,
                ..memory
            },
        };
        match self.offload {
            When::Never => memory,
            When::Auto => StageMemory {
                offloadable: memory.activation,
                ..memory
            },
            When::Always => StageMemory {
                offloaded: memory.activation,
                recomputable: Bytes::ZERO,
                ..memory
            },
        }
    }

    fn computed(&self, shape: Shape) -> Result<Predicted, Refusal> {
        let costs = |placement: Placement| {
            self.costs(shape, true, |stage| placement.device(stage, shape.devices))
        };
        let limits = Limits::of(&self.machine);
        if self.machine.nodes().is_none() {
            // Every placement has the same costs.
            return computed(shape, &costs(Placement::Loop), &limits, None);
        }
        let placements = [Placement::Loop, Placement::Vee].into_iter();
        let found = placements
            .map(|placement| computed(shape, &costs(placement), &limits, Some(placement)));
        // Of equals the first.
        found
            .reduce(|best, other| match (&best, &other) {
                (Ok(a), Ok(b)) => {
                    let least = a.lower_bound.min(b.lower_bound);
                    let better = if b.makespan() < a.makespan() {
                        other
                    } else {
                        best
                    };
                    better.map(|better| Predicted {
                        lower_bound: least,
                        ..better
                    })
                }
                (Err(_), Ok(_)) => other,
                _ => best,
            })
            .unwrap_or_else(|| Err(Refusal::default()))
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

    /// The best cut that fits the memory; where none does, the best of all.
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

    /// `auto` for the cut that each built-in schedule asks for: what it finds is no
    /// worse than any of them.
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

    /// The costs where no stage recomputes or offloads all micro-batches, as some do in `solution`:
    /// a computed schedule may do so with single ones.
    fn singly(&self, problem: &Problem, solution: &Solution) -> Option<Costs> {
        let ways = || solution.recompute.iter().chain(&solution.offload);
        let free = self.recompute != When::Always && self.offload != When::Always;
        let none = vec![false; solution.partition.stages()];
        let any = ways().any(|&way| way);
        (free && any).then(|| problem.stage_costs(&solution.partition, &none, &none))
    }

    /// Where the schedule has its stages, if that matters to what values take on their way.
    fn placement(&self, schedule: &CheckedSchedule, shape: Shape) -> Option<Placement> {
        self.machine.nodes()?;
        let own = || (0..shape.stages()).map(|stage| schedule.device_of(StageId(stage)));
        let placed = |placement: &Placement| own().eq(placement.devices(shape));
        [Placement::Loop, Placement::Vee].into_iter().find(placed)
    }
}

/// How long values are on their way between devices.
fn links(machine: &Machine) -> String {
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

fn computed(
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
