//! The search over schedules, chunks and micro-batches.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::candidate::{Details, PlanCandidate};
use super::job::PlanJob;
use super::leaders::{fastest, leaders_first, simplest};
use super::tries::{HUGE, JobOutcome, try_all};
use super::why::SAME;
use super::{Alternative, Plan, PlanError, PlanOptions};
use crate::check::CheckedSchedule;
use crate::profile::Profile;
use crate::schedule::Shape;
use crate::solve::{Problem, Shortfall, When};
use crate::units::{Bytes, Micros};

/// Number of misfits with several stages per device that are analysed if nothing fits.
const SEARCHED: usize = 4;
/// Number of schedules that are computed before the next ones are compared with them.
const AT_A_TIME: usize = 4;
/// Above this many stages times micro-batches, no schedule is computed for a runner-up alone.
const LARGE: usize = 4_000;

/// Chooses balance, schedule, chunks, micro-batches and recompute for a profile.
///
/// Every combination is cut for the smallest bottleneck, exactly, and simulated; for the fastest of
/// each schedule all cuts are then simulated, or, if there are too many (over 4,000), each cut is
/// moved by a layer as long as the simulated step shrinks, and a schedule is computed for the costs
/// of the fastest ([`auto`](crate::auto())). If the profile has the host's times, all is tried with
/// CUDA graphs too; if there is a link to the host's memory, without offload too. The exchange of
/// gradients between replicas is part of the simulated step, but not of a cut's bottleneck. Stages
/// first recompute or offload as their memory requires; for the fastest, this is then changed stage
/// by stage as long as that helps.
///
/// Cuts are exact for the bottleneck, which determines the step if there are many micro-batches.
/// The step itself is only searched locally if there are many cuts: with one or two micro-batches,
/// links slower than the layers, or devices that share cores, a cut with a larger bottleneck can
/// give a shorter step that is then not found.
///
/// Of huge shapes (over 2^18 stages times micro-batches) not all are tried: more micro-batches only of
/// the schedules that fewer ones promise to be within 10 % of the best, and no computed schedules; nor
/// are cuts moved where only a few could be.
///
/// # Errors
/// [`PlanError::NoneFits`] with the missing bytes, [`PlanError::NoSchedule`], or
/// [`PlanError::Options`].
///
/// # Determinism
/// The same plan for the same profile and options, on any number of threads.
///
/// # Complexity
/// Linear in the actions of the schedules tried, of which there are at most about 200 (twice
/// with CUDA graphs, and twice with a link to the host), plus an
/// exact cut for each and a bounded number of further simulations.
pub fn plan(profile: &Profile, options: &PlanOptions) -> Result<Plan, PlanError> {
    let samples = options.samples(profile.batch())?;
    options.check_fewest(profile, samples)?;
    let (jobs, reason) = jobs(
        profile.layers().len(),
        options,
        (samples, (profile.fewest_samples(), profile.batch())),
    );
    let jobs = options.with_and_without(jobs, profile);
    let tried = try_all(&jobs, profile, options);
    let mut fitting = Vec::new();
    let mut misfits = Vec::new();
    let mut refused = reason;
    for (job, outcome) in tried {
        match outcome {
            JobOutcome::Fits(candidate) => fitting.push(*candidate),
            JobOutcome::Misfit => misfits.push(job),
            JobOutcome::Refused(reason) => refused = reason,
        }
    }
    fitting.sort_by(PlanCandidate::order);
    let polished = leaders_first(&mut fitting);
    let better = in_parallel(&fitting[..polished], PlanCandidate::polish);
    fitting.splice(..polished, better);
    if options.computes() {
        fitting[..polished].sort_by(PlanCandidate::order);
        let computed = computed(&fastest(&fitting[..polished]), options);
        fitting.extend(computed);
    }
    fitting.sort_by(PlanCandidate::order);
    if fitting.is_empty() {
        return Err(nothing(profile, options, &misfits, refused));
    }
    let best = fitting.remove(simplest(&fitting));
    let (own, others) = alternatives(&best, &fitting);
    let misfits = misfit_alternatives((&best, &fitting), &misfits, (profile, options));
    let alternatives = others.into_iter().chain(misfits).collect();
    Ok(Plan {
        model: profile.model().cloned(),
        precision: profile.precision().map(str::to_owned),
        kernels: profile.kernels().map(str::to_owned),
        device: profile.accelerator().map(str::to_owned),
        doubts: profile.doubts().unwrap_or_default().to_vec(),
        batch: Some(samples),
        ..best.plan(own, alternatives)
    })
}

/// Returns the candidates, the fastest first, under schedules computed for their costs, as far as these
/// are faster and may be the fastest of their number of chunks: only that one is a plan or a runner-up.
/// For large shapes they are only computed if they may be the plan, for huge ones not at all.
fn computed(candidates: &[&PlanCandidate], options: &PlanOptions) -> Vec<PlanCandidate> {
    let mut found: Vec<PlanCandidate> = Vec::new();
    let cells = |own: &&&PlanCandidate| own.job.shape.stages() * own.job.shape.micro_batches;
    let small = candidates.iter().filter(|own| cells(own) <= HUGE);
    let small: Vec<&PlanCandidate> = small.copied().collect();
    for some in small.chunks(AT_A_TIME) {
        let limit = |shape: Shape| {
            let large = shape.stages() * shape.micro_batches > LARGE;
            let built_in = candidates.first().filter(|_| large).map(|own| own.step);
            let others = found
                .iter()
                .filter(|own| large || own.job.shape.chunks == shape.chunks);
            let least = others.map(|own| own.step).chain(built_in).min();
            least.map_or(Micros::saturating(f64::MAX), |least| least * (1.0 + SAME))
        };
        let more = in_parallel(some, |own| own.computed(options, limit(own.job.shape)));
        found.extend(more.into_iter().flatten());
    }
    found
}

impl PlanOptions {
    /// Returns each job without graphs and with them, without offload and with it, as far as they
    /// are tried.
    fn with_and_without(&self, jobs: Vec<PlanJob>, profile: &Profile) -> Vec<PlanJob> {
        let offload: &[bool] = match self.offload {
            When::Always => &[true],
            When::Auto if self.machine.host_link().is_some() => &[false, true],
            _ => &[false],
        };
        let graphs: &[bool] = match self.cuda_graphs {
            When::Always if profile.captures() => &[true],
            When::Auto if profile.captures() => &[false, true],
            _ => &[false],
        };
        let means = graphs
            .iter()
            .flat_map(|&graphs| offload.iter().map(move |&offload| (graphs, offload)));
        let means: Vec<_> = means.collect();
        let job = |job: PlanJob| {
            let each = means.iter();
            each.map(move |&(graphs, offload)| PlanJob {
                graphs,
                offload,
                ..job
            })
        };
        jobs.into_iter().flat_map(job).collect()
    }

    /// Checks without a profile that some schedule exists for these options and a model of `layers`
    /// layers.
    ///
    /// # Errors
    /// Those of [`plan()`], except for memory.
    pub fn check(&self, layers: usize) -> Result<(), PlanError> {
        let (jobs, mut reason) = jobs(layers, self, (self.samples(1)?, (1, usize::MAX)));
        for job in jobs {
            match job.kind.generate(job.shape) {
                Ok(_) => return Ok(()),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(PlanError::NoSchedule {
            devices: self.machine.devices().len(),
            layers,
            reason,
        })
    }
}

/// Returns the jobs for a mini-batch; `samples` limits the sizes of micro-batches.
fn jobs(
    layers: usize,
    options: &PlanOptions,
    (samples, sizes): (usize, (usize, usize)),
) -> (Vec<PlanJob>, String) {
    let (devices, replicas) = (options.machine.devices().len(), options.machine.replicas());
    let mut jobs = Vec::new();
    for kind in options.schedules() {
        for chunks in options.chunk_counts(layers) {
            if chunks.saturating_mul(devices) > layers {
                continue;
            }
            for micro in options.micro_counts(samples, sizes) {
                jobs.push(PlanJob {
                    kind,
                    shape: Shape::new(devices, micro).with_chunks(chunks),
                    size: samples.div_ceil(micro * replicas),
                    replicas,
                    graphs: false,
                    offload: false,
                });
            }
        }
    }
    (jobs, "every stage needs a layer".to_owned())
}

impl PlanJob {
    pub(super) fn problem(
        &self,
        profile: &Profile,
        options: &PlanOptions,
        schedule: &CheckedSchedule,
    ) -> Problem {
        Problem::new(profile, self.size, &options.machine, schedule)
            .with_recompute(options.recompute)
            .with_offload(if self.offload {
                options.offload
            } else {
                When::Never
            })
            .with_graphs(self.graphs.then(|| profile.graph_replay()))
            .with_optimizer_state(options.optimizer_state)
            .with_tree(options.tree)
    }
}

/// Runs a job on each item, on all cores; returns the results in the items' order.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
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

/// Returns the best of each schedule and number of chunks, and the details of the best.
fn alternatives(
    best: &PlanCandidate,
    others: &[PlanCandidate],
) -> ((Details, Vec<Bytes>), Vec<Alternative>) {
    let mut seen = vec![best.job.key()];
    let mut listed = vec![best];
    for other in others {
        if seen.contains(&other.job.key()) {
            continue;
        }
        seen.push(other.job.key());
        // A schedule of several chunks may equal another one.
        if !listed.iter().any(|own| own.is_twin_of(other)) {
            listed.push(other);
        }
    }
    let mut simulated = in_parallel(&listed, |own| own.simulated()).into_iter();
    // The best is the first one.
    let own = simulated.next().unwrap_or_else(|| best.simulated());
    let fullest = |peaks: &[Bytes]| peaks.iter().copied().max();
    let held = best.contender(own.0, fullest(&own.1));
    let fitting = listed[1..].iter().zip(simulated);
    let fitting = fitting.map(|(other, (details, peak_bytes))| {
        let contender = other.contender(details, fullest(&peak_bytes));
        Alternative {
            schedule: other.job.kind,
            chunks: other.job.shape.chunks,
            replicas: other.job.replicas,
            devices: other.job.shape.devices,
            neighbours: best.neighbours(),
            micro_batches: other.job.micro_batches(),
            balance: other.solution.partition.balance(),
            recomputing: other.recomputing(),
            step: Some(other.step),
            bubble_fraction: Some(details.bubble),
            peak_bytes,
            reason: contender.loses_to(&held),
        }
    });
    (own, fitting.collect())
}

/// Returns those that do not fit, one for each schedule and number of chunks of which none does.
fn misfit_alternatives(
    (best, others): (&PlanCandidate, &[PlanCandidate]),
    misfits: &[PlanJob],
    (profile, options): (&Profile, &PlanOptions),
) -> Vec<Alternative> {
    let fitting = others.iter().chain([best]);
    let mut seen: Vec<_> = fitting.map(|own| own.job.key()).collect();
    let is_new = |job: &&PlanJob| {
        let new = !seen.contains(&job.key());
        seen.push(job.key());
        new
    };
    let listed: Vec<&PlanJob> = misfits.iter().filter(is_new).collect();
    in_parallel(&listed, |job| {
        // The shortage of a device with several stages takes a search, and that of a huge shape, too.
        let huge = job.shape.stages() * job.shape.micro_batches > HUGE;
        let short = job.shape.chunks == 1 && !huge;
        let shortfall = short.then(|| job.shortfall(profile, options)).flatten();
        let reason = match shortfall {
            Some(shortfall) => format!("does not fit: {shortfall}"),
            None => "no cut that fits was found".to_owned(),
        };
        Alternative {
            schedule: job.kind,
            chunks: job.shape.chunks,
            replicas: job.replicas,
            devices: job.shape.devices,
            neighbours: best.neighbours(),
            micro_batches: job.micro_batches(),
            balance: Vec::new(),
            recomputing: 0,
            step: None,
            bubble_fraction: None,
            peak_bytes: Vec::new(),
            reason,
        }
    })
}

/// Returns why nothing is left: the nearest misfit, or why there is no schedule.
fn nothing(
    profile: &Profile,
    options: &PlanOptions,
    misfits: &[PlanJob],
    reason: String,
) -> PlanError {
    let explained = |jobs: &[&PlanJob]| -> Vec<(PlanJob, Shortfall)> {
        let shortfalls = in_parallel(jobs, |job| job.shortfall(profile, options));
        let pairs = jobs.iter().zip(shortfalls);
        let known = pairs.filter_map(|(job, shortfall)| Some((**job, shortfall?)));
        known.collect()
    };
    let one: Vec<&PlanJob> = misfits.iter().filter(|job| job.shape.chunks == 1).collect();
    let mut known = explained(&one);
    // The shortage of a device with several stages takes a search: only if nothing else is known.
    if known.is_empty() {
        let few: Vec<&PlanJob> = misfits.iter().take(SEARCHED).collect();
        known = explained(&few);
    }
    let nearest = known.into_iter();
    match nearest.min_by_key(|(_, shortfall)| shortfall.missing()) {
        Some((job, shortfall)) => PlanError::NoneFits {
            schedule: job.kind,
            chunks: job.shape.chunks,
            micro_batches: job.micro_batches(),
            shortfall,
        },
        None => PlanError::NoSchedule {
            devices: options.machine.devices().len(),
            layers: profile.layers().len(),
            reason,
        },
    }
}
