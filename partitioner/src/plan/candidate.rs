//! A combination that fits, with its prediction.

use super::job::PlanJob;
use super::tries::HUGE;
use super::why::{Contender, Parts};
use super::{Alternative, Plan, PlanOptions};
use crate::auto::{Effort, auto_within, least_of_all};
use crate::builtin::ScheduleKind;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::StageId;
use crate::machine::Neighbours;
use crate::schedule::{ActionKind, Placement};
use crate::simulate::{Summary, makespan, summary};
use crate::solve::{Problem, Solution};
use crate::units::{Bytes, Micros};

/// Divides the usual effort of computing a schedule, since there are many.
const EFFORT: usize = 8;
/// Most attempts to compute a schedule that fits.
const COMPUTED: usize = 3;
/// A combination that fits, with its prediction.
#[derive(Clone, Debug)]
pub(super) struct PlanCandidate {
    pub(super) job: PlanJob,
    pub(super) problem: Problem,
    pub(super) schedule: CheckedSchedule,
    pub(super) solution: Solution,
    pub(super) step: Micros,
    /// With the peak per device; none if only the step was simulated.
    details: Option<(Details, Vec<Bytes>)>,
}

/// Details of a simulated step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Details {
    parts: Parts,
    pub(super) bubble: f64,
}

impl Details {
    fn of(summary: &Summary) -> Self {
        Self {
            parts: Parts::of(summary),
            bubble: summary.bubble,
        }
    }
}

impl PlanCandidate {
    pub(super) fn new(
        job: PlanJob,
        problem: Problem,
        schedule: CheckedSchedule,
        solution: Solution,
    ) -> Self {
        Self {
            step: makespan(&schedule, &costs(&problem, &solution)),
            details: None,
            job,
            problem,
            schedule,
            solution,
        }
    }

    /// Returns the candidate if it fits the memory even with gradients that wait for another stage,
    /// which the cut does not consider.
    pub(super) fn fitting(
        job: PlanJob,
        problem: Problem,
        schedule: CheckedSchedule,
        solution: Solution,
    ) -> Option<Self> {
        // A huge one is not simulated again for its details.
        let huge = job.shape.stages() * job.shape.micro_batches > HUGE;
        if !huge && !is_limited(&problem) {
            return Some(Self::new(job, problem, schedule, solution));
        }
        let summary = summary(&schedule, &costs(&problem, &solution));
        fits(&problem, &summary.peaks).then(|| Self {
            step: summary.makespan,
            details: Some((Details::of(&summary), summary.peaks)),
            job,
            problem,
            schedule,
            solution,
        })
    }

    /// Orders by time; the simpler one first among equals.
    pub(super) fn order(&self, other: &Self) -> std::cmp::Ordering {
        let rank = |own: &Self| (own.step, own.simplicity());
        rank(self).cmp(&rank(other))
    }

    /// Returns the step in microseconds, estimated for another number of micro-batches of the same
    /// mini-batch: the work of the busiest device stays, and its waits shrink with the micro-batches.
    pub(super) fn with_micro_batches(&self, micro_batches: usize) -> f64 {
        let own = self.job.shape.micro_batches as f64;
        let mut work = vec![0.0; self.job.shape.devices];
        for (stage, time) in self.solution.stage_times.iter().enumerate() {
            work[self.schedule.device_of(StageId(stage)).index()] += own * time.get();
        }
        let work = work.into_iter().fold(0.0, f64::max);
        work + (self.step.get() - work) * own / micro_batches as f64
    }

    /// Key of simplicity, then of memory: less is better.
    pub(super) fn simplicity(&self) -> impl Ord + use<> {
        let bytes = self.solution.stage_bytes.iter().copied().sum::<Bytes>();
        (
            self.job.graphs,
            self.offloading(),
            self.job.shape.chunks,
            bytes,
            self.job.kind,
            self.job.shape.micro_batches,
        )
    }

    pub(super) fn recomputing(&self) -> usize {
        self.solution.recompute.iter().filter(|&&yes| yes).count()
    }

    pub(super) fn offloading(&self) -> usize {
        self.solution.offload.iter().filter(|&&yes| yes).count()
    }

    /// Returns the same cut under a schedule computed for its costs, if that is faster: with the
    /// stages' present recomputes and offloads, or with none for whole stages, where the schedule
    /// may choose single micro-batches. None is computed where all are proved to take longer than
    /// `limit`.
    pub(super) fn computed(&self, options: &PlanOptions, limit: Micros) -> Option<Self> {
        let own = self.computed_with(options, limit, &self.solution.ways());
        let plain = vec![(false, false); self.solution.partition.stages()];
        if self.solution.ways() == plain || !self.problem.ways().contains(&(false, false)) {
            return own;
        }
        let singly = self.computed_with(options, limit, &plain);
        [own, singly].into_iter().flatten().min_by(Self::order)
    }

    fn computed_with(
        &self,
        options: &PlanOptions,
        limit: Micros,
        ways: &[(bool, bool)],
    ) -> Option<Self> {
        let shape = self.job.shape;
        let placed = |placement: &Placement| {
            let stages = (0..shape.stages()).map(|s| self.schedule.device_of(StageId(s)));
            stages.eq(placement.devices(shape))
        };
        let placement = [Placement::Loop, Placement::Vee].into_iter().find(placed)?;
        let devices = options.machine.devices().iter();
        let caps: Vec<Option<Bytes>> = devices.map(|device| device.memory).collect();
        let usual = Effort::usual(shape);
        let effort = Effort {
            states: usual.states / EFFORT,
            moves: usual.moves / EFFORT,
        };
        let job = PlanJob {
            kind: ScheduleKind::Auto,
            ..self.job
        };
        // The schedule may need other memory than that of the costs it was computed for: recompute
        // it with the new costs if it does not fit.
        let mut problem = self.problem.clone();
        let partition = &self.solution.partition;
        let (recompute, offload): (Vec<_>, Vec<_>) = ways.iter().copied().unzip();
        for _ in 0..COMPUTED {
            let costs = problem.stage_costs(partition, &recompute, &offload);
            let least = least_of_all(shape, &costs, &caps, Some(placement));
            if least >= self.step || least > limit {
                return None;
            }
            let found = auto_within(shape, &costs, &caps, Some(placement), effort).ok()?;
            if found.schedule.schedule().name() != ScheduleKind::Auto.name() {
                return None;
            }
            problem = problem.under(&found.schedule);
            // The simulation decides whether it fits, with the choices for single micro-batches.
            let Some(solution) = problem.priced(partition, &recompute, &offload) else {
                continue;
            };
            let other = Self::fitting(job, problem.clone(), found.schedule, solution);
            if let Some(other) = other {
                return (other.step < self.step).then_some(other);
            }
        }
        None
    }

    /// Whether both do the same actions in the same order, under any names.
    pub(super) fn is_twin_of(&self, other: &Self) -> bool {
        let (own, others) = (self.schedule.schedule(), other.schedule.schedule());
        self.step == other.step
            && self.job.shape == other.job.shape
            && self.solution.partition == other.solution.partition
            && own.iter().eq(others.iter())
    }

    /// Order of neighbouring devices.
    pub(super) fn neighbours(&self) -> Neighbours {
        self.problem.neighbours()
    }

    /// Returns all details, and the peak per device: simulated if they are not known.
    pub(super) fn simulated(&self) -> (Details, Vec<Bytes>) {
        let simulated = || {
            let summary = summary(&self.schedule, &costs(&self.problem, &self.solution));
            (Details::of(&summary), summary.peaks)
        };
        self.details.clone().unwrap_or_else(simulated)
    }

    pub(super) fn details(&self) -> Details {
        let known = self.details.as_ref().map(|(details, _)| *details);
        known.unwrap_or_else(|| self.simulated().0)
    }

    /// Computing time of the slowest stage for one micro-batch.
    fn slowest_stage(&self) -> Micros {
        let costs = costs(&self.problem, &self.solution);
        let mut lists = self.schedule.schedule().iter();
        let halves = lists.any(|(_, list)| {
            let mut kinds = list.iter().map(|action| action.kind);
            kinds.any(|kind| kind == ActionKind::BackwardInput)
        });
        let stages = (0..self.solution.partition.stages()).map(StageId);
        stages
            .map(|stage| costs.work(stage, halves))
            .max()
            .unwrap_or_default()
    }

    /// Returns the plan, given how it was [`simulated`](Self::simulated).
    pub(super) fn plan(
        self,
        (details, peak_bytes): (Details, Vec<Bytes>),
        alternatives: Vec<Alternative>,
    ) -> Plan {
        let bottleneck = self.slowest_stage();
        let Solution {
            partition,
            recompute,
            offload,
            ..
        } = self.solution;
        Plan {
            model: None,
            precision: None,
            kernels: None,
            device: None,
            doubts: Vec::new(),
            placement: (0..partition.stages())
                .map(|s| self.schedule.device_of(StageId(s)))
                .collect(),
            partition,
            schedule: self.job.kind,
            computed: (self.job.kind == ScheduleKind::Auto)
                .then(|| self.schedule.schedule().clone()),
            replicas: self.job.replicas,
            tensor_parallel: 1,
            neighbours: self.problem.neighbours(),
            shard_optimizer: false,
            nodes: self.problem.nodes().cloned(),
            micro_batches: self.job.micro_batches(),
            chunks: self.job.shape.chunks,
            micro_batch_size: self.job.size,
            batch: None,
            recompute,
            offload,
            cuda_graphs: self.job.graphs,
            bottleneck,
            step: self.step,
            lower_bound: None,
            bubble_fraction: details.bubble,
            peak_bytes,
            limit: None,
            more: Vec::new(),
            alternatives,
        }
    }

    /// Returns its properties for a comparison, with the peak if known.
    pub(super) fn contender(&self, details: Details, peak: Option<Bytes>) -> Contender {
        let plan = self.schedule.schedule();
        let counts = [plan.recompute_counts(), plan.offload_counts()];
        Contender {
            parts: details.parts,
            singly: counts.map(|own| own.into_iter().filter(|&count| count > 0).count()),
            recomputing: self.recomputing(),
            offloading: self.offloading(),
            chunks: self.job.shape.chunks,
            cards: self.job.shape.devices * self.job.replicas,
            peak,
        }
    }
}

/// Whether any device has a memory limit.
fn is_limited(problem: &Problem) -> bool {
    problem
        .devices()
        .iter()
        .any(|device| device.memory.is_some())
}

/// Whether these peaks fit the memory of the devices.
fn fits(problem: &Problem, peaks: &[Bytes]) -> bool {
    let limits = problem.devices().iter().map(|device| device.memory);
    let mut peaks = peaks.iter().zip(limits);
    peaks.all(|(peak, limit)| limit.is_none_or(|limit| *peak <= limit))
}

/// Whether the simulated schedule fits the memory of the devices.
pub(super) fn fits_under(schedule: &CheckedSchedule, (problem, costs): (&Problem, &Costs)) -> bool {
    !is_limited(problem) || fits(problem, &summary(schedule, costs).peaks)
}

pub(super) fn costs(problem: &Problem, solution: &Solution) -> Costs {
    problem.stage_costs(&solution.partition, &solution.recompute, &solution.offload)
}
