//! Tries of jobs: each is cut and simulated, but for huge ones that others show to be hopeless.

use super::PlanOptions;
use super::candidate::PlanCandidate;
use super::job::PlanJob;
use super::search::in_parallel;
use crate::profile::Profile;
use crate::solve::Shortfall;

/// Shapes with more stages times micro-batches than this are huge: a simulation takes tenths of a
/// second.
pub(super) const HUGE: usize = 1 << 18;
/// A huge job is tried if its step is estimated to be at most this many times that of the best.
const HOPEFUL: f64 = 1.1;

/// Result of a try.
pub(super) enum JobOutcome {
    Fits(Box<PlanCandidate>),
    /// No cut fits.
    Misfit,
    Refused(String),
}

/// Tries the jobs; returns those tried, in the same order. Huge ones come last, those with few
/// micro-batches first, and are left out if estimated from those before to be far from the best.
pub(super) fn try_all(
    jobs: &[PlanJob],
    profile: &Profile,
    options: &PlanOptions,
) -> Vec<(PlanJob, JobOutcome)> {
    let count = |job: &PlanJob| match job.shape.stages() * job.shape.micro_batches {
        cells if cells <= HUGE => 0,
        _ => job.shape.micro_batches,
    };
    let mut counts: Vec<usize> = jobs.iter().map(count).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut tried: Vec<(usize, PlanJob, JobOutcome)> = Vec::new();
    for now in counts {
        let all = jobs.iter().enumerate().filter(|(_, job)| count(job) == now);
        let all: Vec<(usize, &PlanJob)> = all.collect();
        let estimates = all.iter().map(|(_, job)| estimate(job, &tried));
        let estimates: Vec<Option<f64>> = estimates.collect();
        let best = estimates
            .iter()
            .flatten()
            .copied()
            .fold(f64::INFINITY, f64::min);
        let hopeful = all
            .iter()
            .zip(&estimates)
            .filter(|(_, estimate)| now == 0 || estimate.is_none_or(|step| step <= HOPEFUL * best));
        let hopeful: Vec<(usize, &PlanJob)> = hopeful.map(|(own, _)| *own).collect();
        let outcomes = in_parallel(&hopeful, |(_, job)| job.run(profile, options));
        let outcomes = hopeful.iter().zip(outcomes);
        tried.extend(outcomes.map(|((at, job), outcome)| (*at, **job, outcome)));
    }
    tried.sort_by_key(|(at, ..)| *at);
    tried
        .into_iter()
        .map(|(_, job, outcome)| (job, outcome))
        .collect()
}

/// Returns the step of a job in microseconds, estimated from the last one tried that only has another
/// number of micro-batches; none if none fitted.
fn estimate(job: &PlanJob, tried: &[(usize, PlanJob, JobOutcome)]) -> Option<f64> {
    let key = |own: &PlanJob| (own.kind, own.shape.chunks, own.means());
    tried
        .iter()
        .rev()
        .find_map(|(_, own, outcome)| match outcome {
            JobOutcome::Fits(found) if key(own) == key(job) => {
                Some(found.with_micro_batches(job.shape.micro_batches))
            }
            _ => None,
        })
}

impl PlanJob {
    fn run(&self, profile: &Profile, options: &PlanOptions) -> JobOutcome {
        let schedule = match self.kind.generate(self.shape) {
            Ok(schedule) => schedule,
            Err(error) => return JobOutcome::Refused(error.to_string()),
        };
        let problem = self.problem(profile, options, &schedule);
        match problem.solution() {
            Some(solution) => {
                let fitting = PlanCandidate::fitting(*self, problem, schedule, solution);
                match fitting {
                    Some(candidate) => JobOutcome::Fits(Box::new(candidate)),
                    None => JobOutcome::Misfit,
                }
            }
            None => JobOutcome::Misfit,
        }
    }

    /// Returns the memory that the job lacks, if no cut fits it.
    pub(super) fn shortfall(&self, profile: &Profile, options: &PlanOptions) -> Option<Shortfall> {
        let schedule = self.kind.generate(self.shape).ok()?;
        let problem = self.problem(profile, options, &schedule);
        problem.solve().err()?.shortfall().cloned()
    }
}
