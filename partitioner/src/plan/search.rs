//! The search over schedules, chunks and micro-batches.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Alternative, Plan, PlanError, PlanOptions};
use crate::check::CheckedSchedule;
use crate::ids::StageId;
use crate::partition::Partition;
use crate::profile::Profile;
use crate::schedule::{Placement, ScheduleKind, Shape, auto};
use crate::simulate::simulate;
use crate::solve::{Problem, Shortfall, Solution, SolveError};
use crate::units::{Bytes, Micros};

/// How many candidates have their cuts moved one by one.
const POLISHED: usize = 3;
/// How many actions may be simulated for each of them.
const POLISH_ACTIONS: usize = 8_000_000;

/// Chooses balance, schedule, chunks, micro-batches and recompute for a profile.
///
/// Every combination is cut for the smallest bottleneck, exactly, and simulated; in the three
/// fastest each cut is then moved by a layer as long as the simulated step shrinks, and a
/// schedule is computed for their costs ([`auto`]).
///
/// # Errors
/// [`PlanError::NoneFits`] with the bytes that are missing, [`PlanError::NoSchedule`], or
/// [`PlanError::Options`].
///
/// # Determinism
/// The same plan for the same profile and options, on any number of threads.
///
/// # Complexity
/// Linear in the actions of the schedules tried, of which there are at most about 200, plus an
/// exact cut for each and a bounded number of further simulations.
pub fn plan(profile: &Profile, options: &PlanOptions) -> Result<Plan, PlanError> {
    let samples = options.samples(profile)?;
    let (jobs, reason) = jobs(profile, options, samples);
    let tried = in_parallel(&jobs, |job| job.run(profile, options));
    let mut fitting = Vec::new();
    let mut misfits = Vec::new();
    let mut refused = reason;
    for (job, outcome) in jobs.iter().zip(tried) {
        match outcome {
            Outcome::Fits(candidate) => fitting.push(*candidate),
            Outcome::Misfit(shortfall) => misfits.push((*job, shortfall)),
            Outcome::Refused(reason) => refused = reason,
        }
    }
    fitting.sort_by(Candidate::order);
    let polished = fitting.len().min(POLISHED);
    let better = in_parallel(&fitting[..polished], Candidate::polish);
    fitting.splice(..polished, better);
    if options.computes() {
        let computed = in_parallel(&fitting[..polished], |candidate| {
            candidate.computed(options)
        });
        fitting.extend(computed.into_iter().flatten());
    }
    fitting.sort_by(Candidate::order);
    if fitting.is_empty() {
        return Err(nothing(profile, options, misfits, refused));
    }
    let best = fitting.remove(0);
    let alternatives = alternatives(&best, &fitting, &misfits);
    Ok(best.plan(alternatives))
}

/// One combination to try.
#[derive(Clone, Copy, Debug)]
struct Job {
    kind: ScheduleKind,
    shape: Shape,
    /// Samples in a micro-batch.
    size: usize,
}

enum Outcome {
    Fits(Box<Candidate>),
    /// No cut fits; with what is missing where that is soon known.
    Misfit(Option<Shortfall>),
    Refused(String),
}

fn jobs(profile: &Profile, options: &PlanOptions, samples: usize) -> (Vec<Job>, String) {
    let (devices, layers) = (options.machine.devices().len(), profile.layers().len());
    let mut jobs = Vec::new();
    for kind in options.schedules() {
        for chunks in options.chunk_counts(layers) {
            if chunks.saturating_mul(devices) > layers {
                continue;
            }
            for micro in options.micro_counts(samples) {
                jobs.push(Job {
                    kind,
                    shape: Shape::new(devices, micro).with_chunks(chunks),
                    size: samples.div_ceil(micro),
                });
            }
        }
    }
    (jobs, "every stage needs a layer".to_owned())
}

impl Job {
    fn problem(
        &self,
        profile: &Profile,
        options: &PlanOptions,
        schedule: &CheckedSchedule,
    ) -> Problem {
        Problem::new(profile, self.size, &options.machine, schedule)
            .with_recompute(options.recompute)
            .with_optimizer_state(options.optimizer_state)
    }

    fn run(&self, profile: &Profile, options: &PlanOptions) -> Outcome {
        let schedule = match self.kind.generate(self.shape) {
            Ok(schedule) => schedule,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let problem = self.problem(profile, options, &schedule);
        match problem.solution() {
            Some(solution) => {
                Outcome::Fits(Box::new(Candidate::new(*self, problem, schedule, solution)))
            }
            None if self.shape.chunks == 1 => Outcome::Misfit(shortfall(&problem)),
            None => Outcome::Misfit(None),
        }
    }
}

fn shortfall(problem: &Problem) -> Option<Shortfall> {
    problem
        .solve()
        .err()
        .as_ref()
        .and_then(SolveError::shortfall)
        .cloned()
}

/// Runs a job on each item, on all cores; results in the items' order.
fn in_parallel<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some(item) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            done.push((item.0, run(item.1)));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.min(items.len()))
            .map(|_| scope.spawn(worker))
            .collect();
        let joined = handles.into_iter().map(|handle| match handle.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect()
    });
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A combination that fits, with its prediction.
#[derive(Clone, Debug)]
struct Candidate {
    job: Job,
    problem: Problem,
    schedule: CheckedSchedule,
    solution: Solution,
    step: Micros,
    bubble: f64,
}

impl Candidate {
    fn new(job: Job, problem: Problem, schedule: CheckedSchedule, solution: Solution) -> Self {
        let costs = problem.stage_costs(&solution.partition, &solution.recompute);
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

    /// Faster first; of equals the simpler one, then the one that needs less memory.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        let rank = |c: &Self| {
            let bytes = c.solution.stage_bytes.iter().copied().sum::<Bytes>();
            (
                c.step,
                c.job.shape.chunks,
                bytes,
                c.job.kind,
                c.job.shape.micro_batches,
            )
        };
        rank(self).cmp(&rank(other))
    }

    fn recomputing(&self) -> usize {
        self.solution.recompute.iter().filter(|&&yes| yes).count()
    }

    /// Moves single cuts by a layer as long as the simulated step shrinks.
    fn polish(&self) -> Self {
        let plan = self.schedule.schedule();
        let actions: usize = plan.iter().map(|(_, list)| list.len()).sum();
        let mut left = POLISH_ACTIONS / actions.max(1);
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
                    if moved.step < best.step {
                        best = moved;
                        improved = true;
                    }
                }
            }
        }
        best
    }

    /// The same cut under a schedule that is computed for its costs, if that is faster.
    fn computed(&self, options: &PlanOptions) -> Option<Self> {
        let shape = self.job.shape;
        let placed = |placement: &Placement| {
            let stages = (0..shape.stages()).map(|s| self.schedule.device_of(StageId(s)));
            stages.eq(placement.devices(shape))
        };
        let placement = [Placement::Loop, Placement::Vee].into_iter().find(placed)?;
        let besides = self.problem.temporaries(&self.solution.partition);
        let devices = options.machine.devices().iter().zip(besides);
        let caps: Vec<Option<Bytes>> = devices
            .map(|(device, more)| device.memory.map(|cap| cap - more))
            .collect();
        let costs = self
            .problem
            .stage_costs(&self.solution.partition, &self.solution.recompute);
        let found = auto(shape, &costs, &caps, Some(placement)).ok()?;
        let step = found.simulation.makespan();
        if step >= self.step || found.schedule.schedule().name() != ScheduleKind::Auto.name() {
            return None;
        }
        let kind = ScheduleKind::Auto;
        Some(Self {
            job: Job { kind, ..self.job },
            bubble: found.simulation.timeline.bubble_fraction(),
            schedule: found.schedule,
            step,
            ..self.clone()
        })
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
        let partition = Partition::from_balance(layers, &balance).ok()?;
        let solution = self.problem.evaluate(&partition).ok()?;
        Some(Self::new(
            self.job,
            self.problem.clone(),
            self.schedule.clone(),
            solution,
        ))
    }

    fn plan(self, alternatives: Vec<Alternative>) -> Plan {
        let Solution {
            partition,
            recompute,
            bottleneck,
            ..
        } = self.solution;
        let costs = self.problem.stage_costs(&partition, &recompute);
        let peaks = simulate(&self.schedule, &costs).peak_bytes();
        let besides = self.problem.temporaries(&partition);
        Plan {
            placement: (0..partition.stages())
                .map(|s| self.schedule.device_of(StageId(s)))
                .collect(),
            partition,
            schedule: self.job.kind,
            computed: (self.job.kind == ScheduleKind::Auto)
                .then(|| self.schedule.schedule().clone()),
            micro_batches: self.job.shape.micro_batches,
            chunks: self.job.shape.chunks,
            micro_batch_size: self.job.size,
            recompute,
            bottleneck,
            step: self.step,
            bubble_fraction: self.bubble,
            peak_bytes: peaks
                .into_iter()
                .zip(besides)
                .map(|(peak, more)| peak + more)
                .collect(),
            alternatives,
        }
    }

    /// Why it loses against `best`.
    fn reason(&self, best: &Self) -> String {
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
        let load = |c: &Self| {
            c.solution.bottleneck.get() * (c.job.shape.chunks * c.job.shape.micro_batches) as f64
        };
        if load(self) > load(best) * 1.001 {
            because.push(format!(
                "its slowest stage costs {}",
                self.solution.bottleneck
            ));
        }
        if !because.is_empty() {
            reason = format!("{reason}: {}", because.join(", "));
        }
        reason
    }
}

/// The best of each schedule and number of chunks, then those that do not fit.
fn alternatives(
    best: &Candidate,
    others: &[Candidate],
    misfits: &[(Job, Option<Shortfall>)],
) -> Vec<Alternative> {
    let mut seen = vec![(best.job.kind, best.job.shape.chunks)];
    let mut alternatives = Vec::new();
    let mut is_new = |job: &Job| {
        let key = (job.kind, job.shape.chunks);
        let new = !seen.contains(&key);
        seen.push(key);
        new
    };
    for other in others.iter().filter(|other| is_new(&other.job)) {
        alternatives.push(Alternative {
            schedule: other.job.kind,
            chunks: other.job.shape.chunks,
            micro_batches: other.job.shape.micro_batches,
            balance: other.solution.partition.balance(),
            recomputing: other.recomputing(),
            step: Some(other.step),
            bubble_fraction: Some(other.bubble),
            reason: other.reason(best),
        });
    }
    for (job, shortfall) in misfits.iter().filter(|(job, _)| is_new(job)) {
        let reason = match shortfall {
            Some(shortfall) => format!("does not fit: {shortfall}"),
            None => "no cut that fits was found".to_owned(),
        };
        alternatives.push(Alternative {
            schedule: job.kind,
            chunks: job.shape.chunks,
            micro_batches: job.shape.micro_batches,
            balance: Vec::new(),
            recomputing: 0,
            step: None,
            bubble_fraction: None,
            reason,
        });
    }
    alternatives
}

/// Why nothing is left: what comes nearest to fitting, or why there is no schedule.
fn nothing(
    profile: &Profile,
    options: &PlanOptions,
    misfits: Vec<(Job, Option<Shortfall>)>,
    reason: String,
) -> PlanError {
    let known = |(job, shortfall): (Job, Option<Shortfall>)| {
        let explain = || {
            let schedule = job.kind.generate(job.shape).ok()?;
            shortfall_of(&job, profile, options, &schedule)
        };
        shortfall.or_else(explain).map(|shortfall| (job, shortfall))
    };
    let nearest = misfits.into_iter().filter_map(known);
    match nearest.min_by_key(|(_, shortfall)| shortfall.missing()) {
        Some((job, shortfall)) => PlanError::NoneFits {
            schedule: job.kind,
            chunks: job.shape.chunks,
            micro_batches: job.shape.micro_batches,
            shortfall,
        },
        None => PlanError::NoSchedule {
            devices: options.machine.devices().len(),
            layers: profile.layers().len(),
            reason,
        },
    }
}

fn shortfall_of(
    job: &Job,
    profile: &Profile,
    options: &PlanOptions,
    schedule: &CheckedSchedule,
) -> Option<Shortfall> {
    shortfall(&job.problem(profile, options, schedule))
}
