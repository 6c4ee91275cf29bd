//! A combination that fits, its prediction, and how to better it.

use super::job::PlanJob;
use super::{Alternative, Plan, PlanOptions};
use crate::auto::{Effort, auto_within};
use crate::builtin::ScheduleKind;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::StageId;
use crate::machine::Neighbours;
use crate::partition::Partition;
use crate::schedule::Placement;
use crate::simulate::simulate;
use crate::solve::{Problem, Solution};
use crate::units::{Bytes, Micros};

/// How many actions may be simulated to polish a candidate of a plan for one machine.
const POLISH_ACTIONS: usize = 8_000_000;
/// By how much less is tried for each of many schedules than for a single one.
const EFFORT: usize = 8;
/// How often a schedule is computed until one fits.
const COMPUTED: usize = 3;
/// Where there are no more cuts than this, all of them are tried.
const ALL_CUTS: usize = 1000;
/// Steps that are this much apart, relative to them, are the same but for what f64 rounds in sums of
/// another order.
const SAME_STEP: f64 = 1e-12;
/// Where stages have no more choices than this of what to do with activations, all are tried.
const ALL_WAYS: usize = 256;

/// A combination that fits, with its prediction.
#[derive(Clone, Debug)]
pub(super) struct PlanCandidate {
    pub(super) job: PlanJob,
    problem: Problem,
    schedule: CheckedSchedule,
    pub(super) solution: Solution,
    pub(super) step: Micros,
    pub(super) bubble: f64,
}

impl PlanCandidate {
    pub(super) fn new(
        job: PlanJob,
        problem: Problem,
        schedule: CheckedSchedule,
        solution: Solution,
    ) -> Self {
        let costs = costs(&problem, &solution);
        let simulation = simulate(&schedule, &costs);
        Self {
            step: simulation.makespan(),
            bubble: simulation.timeline.bubble_fraction(),
            job,
            problem,
            schedule,
            solution,
        }
    }

    /// Whether it keeps to the memory also with gradients that wait for another stage,
    /// which the cut alone does not tell.
    pub(super) fn fits(&self) -> bool {
        let devices = self.problem.devices();
        if devices.iter().all(|device| device.memory.is_none()) {
            return true;
        }
        let limits = devices.iter().map(|device| device.memory);
        let mut peaks = self.peaks().into_iter().zip(limits);
        peaks.all(|(peak, limit)| limit.is_none_or(|limit| peak <= limit))
    }

    /// Faster first; of equals the simpler one, then the one that needs less memory.
    pub(super) fn order(&self, other: &Self) -> std::cmp::Ordering {
        let rank = |c: &Self| {
            let bytes = c.solution.stage_bytes.iter().copied().sum::<Bytes>();
            (
                c.step,
                c.job.graphs,
                c.offloading(),
                c.job.shape.chunks,
                bytes,
                c.job.kind,
                c.job.shape.micro_batches,
            )
        };
        rank(self).cmp(&rank(other))
    }

    pub(super) fn recomputing(&self) -> usize {
        self.solution.recompute.iter().filter(|&&yes| yes).count()
    }

    pub(super) fn offloading(&self) -> usize {
        self.solution.offload.iter().filter(|&&yes| yes).count()
    }

    /// Looks for the shortest simulated step, among cuts and then among what stages do with
    /// their activations.
    pub(super) fn polish(&self) -> Self {
        self.polish_within(POLISH_ACTIONS)
    }

    /// The same where no more than so many actions are simulated for either.
    pub(super) fn polish_within(&self, most: usize) -> Self {
        self.cut_better(most).with_better_ways(most)
    }

    /// Among all cuts where they are few, else by moving single cuts by a layer as long as the
    /// step shrinks, or fewer bytes travel in the same step.
    fn cut_better(&self, most: usize) -> Self {
        let plan = self.schedule.schedule();
        let actions: usize = plan.iter().map(|(_, list)| list.len()).sum();
        let (layers, stages) = (self.solution.partition.layers(), plan.stages());
        let left = most / (actions + 8 * layers);
        match Partition::all(layers, stages, left.min(ALL_CUTS)) {
            Some(all) => self.best_of(&all),
            None => self.improved(left),
        }
    }

    /// Looks for what stages do best with their activations: among all choices where they are
    /// few, else by changing single stages as long as the step shrinks.
    fn with_better_ways(self, most: usize) -> Self {
        let plan = self.schedule.schedule();
        let actions: usize = plan.iter().map(|(_, list)| list.len()).sum();
        let (stages, ways) = (plan.stages(), self.problem.ways());
        let left = most / actions.max(1);
        if ways.len() == 1 {
            return self;
        }
        let all = ways
            .len()
            .checked_pow(u32::try_from(stages).unwrap_or(u32::MAX));
        match all.filter(|&all| all <= left.min(ALL_WAYS)) {
            Some(all) => (0..all).fold(self, |best, choice| {
                let digit = |stage: usize| choice / ways.len().pow(stage as u32) % ways.len();
                let choice: Vec<_> = (0..stages).map(|stage| ways[digit(stage)]).collect();
                best.or_faster(&choice)
            }),
            None => self.with_single_ways(&ways, left),
        }
    }

    fn with_single_ways(self, ways: &[(bool, bool)], mut left: usize) -> Self {
        let stages = self.solution.partition.stages();
        let mut best = self;
        loop {
            let before = best.step;
            for (stage, &way) in (0..stages).flat_map(|s| ways.iter().map(move |way| (s, way))) {
                if left == 0 {
                    return best;
                }
                left -= 1;
                let mut choice = best.ways();
                choice[stage] = way;
                best = best.or_faster(&choice);
            }
            if best.step == before {
                return best;
            }
        }
    }

    /// Of each stage, whether it recomputes and whether it offloads.
    fn ways(&self) -> Vec<(bool, bool)> {
        let Solution {
            recompute, offload, ..
        } = &self.solution;
        recompute
            .iter()
            .copied()
            .zip(offload.iter().copied())
            .collect()
    }

    /// The same cut where stages do this with their activations, if that fits and is faster.
    fn or_faster(self, ways: &[(bool, bool)]) -> Self {
        if ways == self.ways() {
            return self;
        }
        let (recompute, offload): (Vec<_>, Vec<_>) = ways.iter().copied().unzip();
        let partition = &self.solution.partition;
        let Some(solution) = self.problem.with_ways(partition, &recompute, &offload) else {
            return self;
        };
        let (problem, schedule) = (self.problem.clone(), self.schedule.clone());
        let other = Self::new(self.job, problem, schedule, solution);
        if other.step < self.step && other.fits() {
            other
        } else {
            self
        }
    }

    fn best_of(&self, partitions: &[Partition]) -> Self {
        let mut best = self.clone();
        for other in partitions.iter().filter_map(|cut| self.with_cut(cut)) {
            let close = SAME_STEP * best.step.get();
            let sooner = best.step.get() - other.step.get();
            let sends_less = other.solution.traffic < best.solution.traffic;
            if sooner > close || (sooner >= -close && sends_less) {
                best = other;
            }
        }
        best
    }

    /// Moves cuts by a layer, at most `left` times.
    fn improved(&self, mut left: usize) -> Self {
        let plan = self.schedule.schedule();
        let mut best = self.clone();
        let mut improved = true;
        while improved {
            improved = false;
            for (cut, forward) in (1..plan.stages()).flat_map(|cut| [(cut, true), (cut, false)]) {
                if left == 0 {
                    return best;
                }
                if let Some(moved) = best.moved(cut, forward) {
                    left -= 1;
                    // To the bit here, so that no two cuts take turns.
                    let rank = |own: &Self| (own.step, own.solution.traffic);
                    if rank(&moved) < rank(&best) {
                        best = moved;
                        improved = true;
                    }
                }
            }
        }
        best
    }

    /// The same cut under a schedule that is computed for its costs, if that is faster: where
    /// stages do with their activations what they do here, or where none does anything with those
    /// of all micro-batches, but the schedule may with those of single ones.
    pub(super) fn computed(&self, options: &PlanOptions) -> Option<Self> {
        let own = self.computed_with(options, &self.ways());
        let plain = vec![(false, false); self.solution.partition.stages()];
        if self.ways() == plain || !self.problem.ways().contains(&(false, false)) {
            return own;
        }
        let singly = self.computed_with(options, &plain);
        [own, singly].into_iter().flatten().min_by(Self::order)
    }

    fn computed_with(&self, options: &PlanOptions, ways: &[(bool, bool)]) -> Option<Self> {
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
        // A schedule asks for other memory than the one that it was computed from, for which its
        // costs then are; so once more where it does not fit.
        let mut problem = self.problem.clone();
        let partition = &self.solution.partition;
        let (recompute, offload): (Vec<_>, Vec<_>) = ways.iter().copied().unzip();
        for _ in 0..COMPUTED {
            let costs = problem.stage_costs(partition, &recompute, &offload);
            let found = auto_within(shape, &costs, &caps, Some(placement), effort).ok()?;
            if found.schedule.schedule().name() != ScheduleKind::Auto.name() {
                return None;
            }
            problem = problem.under(&found.schedule);
            // The simulation says whether it fits, with what single micro-batches do.
            let Some(solution) = problem.priced(partition, &recompute, &offload) else {
                continue;
            };
            let other = Self::new(job, problem.clone(), found.schedule, solution);
            if other.fits() {
                return (other.step < self.step).then_some(other);
            }
        }
        None
    }

    /// The same with one cut moved by a layer, if that fits.
    fn moved(&self, cut: usize, forward: bool) -> Option<Self> {
        let mut balance = self.solution.partition.balance();
        let (from, to) = if forward {
            (cut, cut - 1)
        } else {
            (cut - 1, cut)
        };
        balance[from] = balance[from].checked_sub(1).filter(|&left| left > 0)?;
        balance[to] += 1;
        let layers = self.solution.partition.layers();
        self.with_cut(&Partition::from_balance(layers, &balance).ok()?)
    }

    /// The same cut in another way, if that fits.
    fn with_cut(&self, partition: &Partition) -> Option<Self> {
        let solution = self.problem.evaluate(partition).ok()?;
        let other = Self::new(
            self.job,
            self.problem.clone(),
            self.schedule.clone(),
            solution,
        );
        other.fits().then_some(other)
    }

    /// Whether both do the same in the same order, under whichever names.
    pub(super) fn is_twin_of(&self, other: &Self) -> bool {
        let lists = |own: &Self| {
            let lists = own.schedule.schedule().iter();
            lists
                .map(|(_, actions)| actions.to_vec())
                .collect::<Vec<_>>()
        };
        self.step == other.step
            && self.job.shape == other.job.shape
            && self.solution.partition == other.solution.partition
            && lists(self) == lists(other)
    }

    /// Which devices are next to each other.
    pub(super) fn neighbours(&self) -> Neighbours {
        self.problem.neighbours()
    }

    /// The simulated peak per device.
    pub(super) fn peaks(&self) -> Vec<Bytes> {
        let costs = costs(&self.problem, &self.solution);
        simulate(&self.schedule, &costs).peak_bytes()
    }

    pub(super) fn plan(self, alternatives: Vec<Alternative>) -> Plan {
        let peak_bytes = self.peaks();
        let Solution {
            partition,
            recompute,
            offload,
            bottleneck,
            ..
        } = self.solution;
        Plan {
            model: None,
            precision: None,
            kernels: None,
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
            recompute,
            offload,
            cuda_graphs: self.job.graphs,
            bottleneck,
            step: self.step,
            lower_bound: None,
            bubble_fraction: self.bubble,
            peak_bytes,
            limit: None,
            more: Vec::new(),
            alternatives,
        }
    }

    /// Why it loses against `best`.
    pub(super) fn reason(&self, best: &Self) -> String {
        let slower = self.step.get() / best.step.get().max(f64::MIN_POSITIVE);
        let mut reason = if self.step == best.step {
            "as fast, but with more chunks or memory".to_owned()
        } else {
            format!("{:.1} % slower", (slower - 1.0) * 100.0)
        };
        let (here, there) = (self.recomputing(), best.recomputing());
        let mut because = Vec::new();
        if self.bubble > best.bubble {
            because.push(format!(
                "idle {:.1} % instead of {:.1} %",
                self.bubble * 100.0,
                best.bubble * 100.0
            ));
        }
        if here > there {
            because.push(format!("{here} stages recompute instead of {there}"));
        }
        let (here, there) = (self.offloading(), best.offloading());
        if here > there {
            because.push(format!("{here} stages offload instead of {there}"));
        }
        // Of the whole step: stages and micro-batches may be others in number.
        let load = |c: &Self| {
            c.solution.bottleneck * (c.job.shape.chunks * c.job.shape.micro_batches) as f64
        };
        if load(self) > load(best) * 1.001 {
            because.push(format!(
                "{} of the slowest stages instead of {}",
                load(self),
                load(best)
            ));
        }
        if !because.is_empty() {
            reason = format!("{reason}: {}", because.join(", "));
        }
        reason
    }
}

fn costs(problem: &Problem, solution: &Solution) -> Costs {
    problem.stage_costs(&solution.partition, &solution.recompute, &solution.offload)
}
