//! Trial of a choice: cut by the solver, or with all cuts if there are few, and simulated.

use super::ClusterOptions;
use super::choices::Choice;
use crate::auto::least_makespan;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::{DeviceId, StageId};
use crate::machine::Machine;
use crate::machine::cluster::Layout;
use crate::partition::Partition;
use crate::plan::PlanOptions;
use crate::plan::candidate::PlanCandidate;
use crate::plan::job::PlanJob;
use crate::profile::Profile;
use crate::simulate::simulate;
use crate::solve::{Problem, Transfer, When};
use crate::units::{Bytes, Micros};

/// All cuts are simulated if their simulations have at most this many actions together.
pub(super) const ALL_ACTIONS: usize = 400_000;

/// Same as `ALL_ACTIONS` for a single cut, whatever budget is left: nothing else tells what fits.
const ONE_CUT: usize = 100_000;

/// Relative reduction of computed bounds, against rounding in f64.
const ROUNDED: f64 = 1e-9;

/// Result of a trial.
pub(super) struct Trial {
    /// The best candidate, if any fits.
    pub(super) found: Option<PlanCandidate>,
    /// Whether nothing better can be found.
    pub(super) settled: bool,
    /// Lower bound of all cuts, if better than the known one.
    pub(super) bound: Option<Micros>,
    /// Simulated actions of all cuts, a layer counting as one, if all were tried.
    pub(super) simulated: usize,
}

/// Inputs of a trial.
pub(super) struct Setting<'a> {
    pub(super) profile: &'a Profile,
    pub(super) options: &'a ClusterOptions,
    pub(super) layout: &'a Layout,
    pub(super) machine: &'a Machine,
}

impl Setting<'_> {
    /// Returns the options of a simulation of this layout; `sharded` means that replicas share the
    /// optimizer's state.
    pub(super) fn plan_options(&self, choice: &Choice, sharded: bool) -> PlanOptions {
        let replicas = self.layout.replicas;
        let state = self.options.optimizer_state;
        let mut own = PlanOptions::new(self.machine.clone());
        own.micro_batches = Some(choice.shape.micro_batches * replicas);
        own.batch = Some(self.options.batch);
        own.schedule = Some(choice.kind);
        own.chunks = Some(choice.shape.chunks);
        own.recompute = self.options.recompute;
        own.offload = When::Never;
        own.cuda_graphs = When::Never;
        own.optimizer_state = if sharded {
            state / replicas as f64
        } else {
            state
        };
        own
    }

    pub(super) fn job(&self, choice: &Choice) -> PlanJob {
        PlanJob {
            kind: choice.kind,
            shape: choice.shape,
            replicas: self.layout.replicas,
            size: choice.size,
            graphs: false,
            offload: false,
        }
    }

    fn problem(&self, choice: &Choice, schedule: &CheckedSchedule, sharded: bool) -> Problem {
        let own = self.plan_options(choice, sharded);
        self.job(choice).problem(self.profile, &own, schedule)
    }

    /// Tries a choice; steps not below `best` are ignored. All cuts are tried if that takes at most
    /// `most` simulated actions.
    pub(super) fn run(&self, choice: &Choice, best: Option<Micros>, most: usize) -> Trial {
        let Ok(schedule) = choice.kind.generate(choice.shape) else {
            return Trial {
                found: None,
                settled: true,
                bound: None,
                simulated: 0,
            };
        };
        let sharded = self.options.shard_optimizer != When::Never;
        let problem = self.problem(choice, &schedule, sharded);
        if let Some(all) = self.all_cuts(&problem, &schedule, most) {
            let (found, simulated) = self.best_of(choice, (&problem, &schedule), &all, best);
            return Trial {
                found,
                settled: true,
                bound: None,
                simulated,
            };
        }
        let of = |problem: Problem| {
            let solution = problem.solution()?;
            let job = self.job(choice);
            PlanCandidate::fitting(job, problem, schedule.clone(), solution)
        };
        let found = of(problem.clone()).or_else(|| {
            let redo = self.options.recompute == When::Auto;
            let problem = problem.clone().with_recompute(When::Always);
            redo.then(|| of(problem)).flatten()
        });
        Trial {
            found,
            settled: false,
            bound: least(choice, problem),
            simulated: 0,
        }
    }

    /// Returns every cut, if simulating all of them with all choices of recompute takes at most
    /// `most` actions.
    fn all_cuts(
        &self,
        problem: &Problem,
        schedule: &CheckedSchedule,
        most: usize,
    ) -> Option<Vec<Partition>> {
        let plan = schedule.schedule();
        let stages = u32::try_from(plan.stages()).ok()?;
        let ways = problem.ways().len().checked_pow(stages)?;
        let layers = self.profile.layers().len();
        let each = actions(schedule) + plan.stages() + layers;
        let least = if layers == plan.stages() { ONE_CUT } else { 0 };
        let most = most.max(least);
        Partition::all(layers, plan.stages(), most / each.checked_mul(ways)?)
    }

    /// Returns the fastest of these cuts that fits, with each choice of recompute, and the number
    /// of simulated actions.
    ///
    /// If devices share nothing, longer work makes nothing end sooner: a cut that fits without
    /// recompute is not tried with it.
    fn best_of(
        &self,
        choice: &Choice,
        (problem, schedule): (&Problem, &CheckedSchedule),
        cuts: &[Partition],
        best: Option<Micros>,
    ) -> (Option<PlanCandidate>, usize) {
        let plan = schedule.schedule();
        let stages = plan.stages();
        let ways = problem.ways();
        let never = vec![false; stages];
        let alone = self.machine.cards().is_none();
        let of = (plan.devices(), plan.micro_batches());
        let mut best = best;
        let mut found = None;
        let actions = actions(schedule);
        // Cost of a cut that is not simulated.
        let least_work = stages + self.profile.layers().len();
        let mut simulated = 0;
        for cut in cuts {
            for number in 0..ways.len().pow(stages as u32) {
                let digit = |stage: usize| number / ways.len().pow(stage as u32) % ways.len();
                let redo: Vec<bool> = (0..stages).map(|stage| ways[digit(stage)].0).collect();
                let costs = problem.stage_costs(cut, &redo, &never);
                let plain = alone && number == 0;
                let least = least_makespan(schedule.owner(), of, &costs).get() * (1.0 - ROUNDED);
                let may_be = best.is_none_or(|best| least <= best.get())
                    && self.may_hold(schedule.owner(), &costs);
                simulated += least_work + if may_be { actions } else { 0 };
                let simulation = may_be.then(|| simulate(schedule, &costs));
                // An equally fast choice may be simpler.
                let faster = simulation.filter(|own| match best {
                    Some(best) => {
                        let step = own.makespan();
                        step < best || (found.is_none() && step == best)
                    }
                    None => true,
                });
                let Some(simulation) = faster else {
                    if plain {
                        break;
                    }
                    continue;
                };
                if self.holds(simulation.peak_bytes()) {
                    best = Some(simulation.makespan());
                    found = Some((cut, redo));
                    if plain {
                        break;
                    }
                }
            }
        }
        let candidate = found.and_then(|(cut, redo)| {
            let solution = problem.priced(cut, &redo, &never)?;
            let (problem, schedule) = (problem.clone(), schedule.clone());
            let job = self.job(choice);
            Some(PlanCandidate::new(job, problem, schedule, solution))
        });
        (candidate, simulated)
    }

    /// Whether each device has room for the fixed memory, including gradients.
    fn may_hold(&self, owner: &[u32], costs: &Costs) -> bool {
        let mut least = vec![Bytes::ZERO; self.machine.devices().len()];
        for (stage, device) in owner.iter().enumerate() {
            least[*device as usize] += costs.memory(StageId(stage)).fixed();
        }
        self.holds(least)
    }

    fn holds(&self, peaks: Vec<Bytes>) -> bool {
        let mut all = peaks.into_iter().enumerate();
        all.all(|(device, peak)| {
            let own = self.machine.devices().get(DeviceId(device).index());
            let limit = own.and_then(|own| own.memory);
            limit.is_none_or(|limit| peak <= limit)
        })
    }

    /// Returns the same cut without a shared optimizer state, if that fits.
    pub(super) fn unshared(&self, choice: &Choice, found: &PlanCandidate) -> Option<PlanCandidate> {
        let schedule = choice.kind.generate(choice.shape).ok()?;
        let problem = self.problem(choice, &schedule, false);
        let own = &found.solution;
        let solution = problem.priced(&own.partition, &own.recompute, &own.offload)?;
        PlanCandidate::fitting(self.job(choice), problem, schedule, solution)
    }
}

/// Number of actions of all devices.
fn actions(schedule: &CheckedSchedule) -> usize {
    let lists = schedule.schedule().iter();
    lists.map(|(_, list)| list.len()).sum()
}

/// Work of the slowest stage, for one stage per device: no cut that fits has a faster one.
fn least(choice: &Choice, problem: Problem) -> Option<Micros> {
    if choice.shape.chunks > 1 {
        return None;
    }
    let solution = problem.with_transfer(Transfer::Overlapped).solution()?;
    Some(solution.lower_bound * choice.shape.micro_batches as f64)
}
