//! One schedule of one question, simulated like `gpipe-rs simulate --profile`.

use gpipe_partitioner::{
    CheckedSchedule, Costs, Machine, Problem, ScheduleKind, Shape, Simulation, Strategy, When,
    auto, simulate,
};

use crate::Question;

/// A schedule and its simulation.
pub(crate) struct Simulated {
    pub(crate) kind: ScheduleKind,
    pub(crate) chunks: usize,
    pub(crate) simulation: Simulation,
}

impl Simulated {
    /// Simulates the schedule with the requested chunks or its usual ones; `auto` then tries one and two and
    /// takes the faster.
    pub(crate) fn new(question: &Question, kind: ScheduleKind) -> Result<Self, String> {
        let chunks = match question.chunks {
            Some(chunks) => vec![chunks],
            None if kind == ScheduleKind::Auto => vec![1, 2],
            None => vec![kind.default_chunks()],
        };
        let cases = (chunks.into_iter()).map(|chunks| Self::with_chunks(question, kind, chunks));
        // Takes the first of equals, and the first of two refusals.
        let best = cases.reduce(|best, case| match (&best, &case) {
            (Ok(a), Ok(b)) if b.simulation.makespan() < a.simulation.makespan() => case,
            (Err(_), Ok(_)) => case,
            _ => best,
        });
        best.unwrap_or_else(|| Err("no chunks were tried".to_owned()))
    }

    /// Simulates the schedule as `--compare` does: with one stage per device if it allows no others.
    pub(crate) fn compared(question: &Question, kind: ScheduleKind) -> Result<Self, String> {
        match kind.default_chunks() {
            1 if kind != ScheduleKind::Auto => Self::with_chunks(question, kind, 1),
            _ => Self::new(question, kind),
        }
    }

    fn with_chunks(question: &Question, kind: ScheduleKind, chunks: usize) -> Result<Self, String> {
        let shape = question.shape(chunks)?;
        let simulation = if kind == ScheduleKind::Auto {
            computed(question, shape)?
        } else {
            let schedule = kind.generate(shape).map_err(|error| error.to_string())?;
            simulate(&schedule, &costs(question, shape, &schedule)?)
        };
        Ok(Self {
            kind,
            chunks,
            simulation,
        })
    }

    /// The schedule's name, for `auto` with its choice.
    pub(crate) fn name(&self) -> String {
        let schedule = self.simulation.schedule().schedule();
        match (self.kind, schedule.name()) {
            (ScheduleKind::Auto, "auto") => "auto (computed)".to_owned(),
            (ScheduleKind::Auto, name) => format!("auto (here {name})"),
            (kind, _) => kind.to_string(),
        }
    }
}

/// Stage costs of the schedule: one layer per stage.
fn costs(question: &Question, shape: Shape, schedule: &CheckedSchedule) -> Result<Costs, String> {
    let profile = question.profile(shape.chunks)?;
    let machine = Machine::new(shape.devices).map_err(|error| error.to_string())?;
    let machine = match question.link()? {
        Some(link) => machine.with_link(link),
        None => machine,
    };
    let recompute = if question.recompute {
        When::Always
    } else {
        When::Never
    };
    let problem = Problem::new(&profile, profile.batch(), &machine, schedule)
        .with_recompute(recompute)
        .with_offload(When::Never);
    let solution = problem
        .solve_by(&Strategy::Manual(vec![1; shape.stages()]))
        .map_err(|error| error.to_string())?;
    Ok(problem.stage_costs(&solution.partition, &solution.recompute, &solution.offload))
}

/// Computes `auto` with the stage costs of the shape's first built-in schedule. Stages are equal, so every
/// schedule gives them the same costs.
fn computed(question: &Question, shape: Shape) -> Result<Simulation, String> {
    let training = |kind: &ScheduleKind| kind.trains() && *kind != ScheduleKind::Auto;
    let kinds = ScheduleKind::ALL.into_iter().filter(training);
    let schedule = (kinds.map(|kind| kind.generate(shape)))
        .find_map(Result::ok)
        .ok_or("no schedule has this shape")?;
    let costs = costs(question, shape, &schedule)?;
    let found = auto(shape, &costs, &[], None).map_err(|error| error.to_string())?;
    Ok(found.simulation)
}
