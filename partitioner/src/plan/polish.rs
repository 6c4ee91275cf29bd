//! Local search for better cuts, and for better recomputes and offloads, of a combination that fits.
//!
//! Usually only the step is simulated: a slower one needs no timeline, and no check of its memory.

use super::candidate::{PlanCandidate, costs, fits_under};
use crate::check::CheckedSchedule;
use crate::partition::Partition;
use crate::simulate::{Program, makespan};
use crate::solve::{Problem, Solution, SolveError};
use crate::units::{Bytes, Micros};

/// Limit of simulated actions to polish a cut for one machine.
const POLISH_ACTIONS: usize = 8_000_000;
/// With at most this many cuts, all of them are tried.
const ALL_CUTS: usize = 4000;
/// Relative difference up to which steps count as equal: sums in another order differ by rounding in
/// f64.
const SAME_STEP: f64 = 1e-12;
/// With fewer changes than this, and than cuts, none is tried: the preparations take longer.
const FEW: usize = 8;
/// With at most this many combinations of recompute and offload, all are tried.
const ALL_WAYS: usize = 256;

impl Problem {
    /// Returns the cut with the shortest simulated step under `schedule` that is found from the cut of
    /// the smallest bottleneck ([`solve`](Self::solve)): the two differ if devices have several stages
    /// or if stages do not wait for the slowest.
    ///
    /// # Errors
    /// Those of [`solve`](Self::solve).
    pub fn solve_under(&self, schedule: &CheckedSchedule) -> Result<Solution, SolveError> {
        Ok(Polish::of(self, schedule, self.solve()?, POLISH_ACTIONS).best)
    }
}

impl PlanCandidate {
    /// Searches for the shortest simulated step, among cuts and then among recomputes and offloads of
    /// stages.
    pub(super) fn polish(&self) -> Self {
        self.polish_within(POLISH_ACTIONS)
    }

    /// Same as `polish`, with at most `most` simulated actions for either.
    pub(super) fn polish_within(&self, most: usize) -> Self {
        let (stages, layers) = (self.job.shape.stages(), self.solution.partition.layers());
        let changes = most / (self.job.actions() + 8 * layers);
        if changes < FEW.min(stages - 1) {
            return self.clone();
        }
        let best = Polish::of(&self.problem, &self.schedule, self.solution.clone(), most).best;
        if best == self.solution {
            return self.clone();
        }
        let (problem, schedule) = (self.problem.clone(), self.schedule.clone());
        Self::new(self.job, problem, schedule, best)
    }
}

/// Whether `now` only adds recomputes or offloads, or nothing changes: since the cut fits, that is
/// faster only by chance, through the order of turns.
fn only_adds(before: &[(bool, bool)], now: &[(bool, bool)]) -> bool {
    let mut pairs = before.iter().zip(now);
    pairs.all(|(before, now)| *before == (false, false) || before == now)
}

struct Polish<'a> {
    problem: &'a Problem,
    schedule: &'a CheckedSchedule,
    program: Program,
    /// Limit of simulated actions.
    most: usize,
    best: Solution,
    /// Step of the best.
    step: Micros,
}

impl<'a> Polish<'a> {
    fn of(
        problem: &'a Problem,
        schedule: &'a CheckedSchedule,
        from: Solution,
        most: usize,
    ) -> Self {
        let own = Self {
            problem,
            schedule,
            program: Program::new(schedule),
            most,
            step: makespan(schedule, &costs(problem, &from)),
            best: from,
        };
        own.cut_better().with_better_ways()
    }

    fn actions(&self) -> usize {
        let plan = self.schedule.schedule();
        plan.iter().map(|(_, list)| list.len()).sum()
    }

    /// Improves the cut: among all cuts if they are few, else by moving single cuts by a layer as long
    /// as the step shrinks, or fewer bytes travel in the same step.
    fn cut_better(mut self) -> Self {
        let (layers, stages) = {
            let partition = &self.best.partition;
            (partition.layers(), partition.stages())
        };
        let left = self.most / (self.actions() + 8 * layers);
        match Partition::all(layers, stages, left.min(ALL_CUTS)) {
            Some(all) => self.take_best_of(&all),
            None => self.move_cuts(stages, left),
        }
        self
    }

    /// Improves recomputes and offloads: among all combinations if they are few, else by changing
    /// single stages as long as the step shrinks.
    fn with_better_ways(mut self) -> Self {
        let stages = self.best.partition.stages();
        let ways = self.problem.ways();
        let left = self.most / self.actions().max(1);
        if ways.len() == 1 {
            return self;
        }
        let power = u32::try_from(stages).unwrap_or(u32::MAX);
        let all = ways.len().checked_pow(power);
        match all.filter(|&all| all <= left.min(ALL_WAYS)) {
            Some(all) => {
                for choice in 0..all {
                    let digit = |stage: usize| choice / ways.len().pow(stage as u32) % ways.len();
                    let choice: Vec<_> = (0..stages).map(|stage| ways[digit(stage)]).collect();
                    self.take_if_faster(&choice);
                }
            }
            None => self.change_single_ways(&ways, left),
        }
        self
    }

    fn change_single_ways(&mut self, ways: &[(bool, bool)], mut left: usize) {
        let stages = self.best.partition.stages();
        loop {
            let before = self.step;
            for (stage, &way) in (0..stages).flat_map(|s| ways.iter().map(move |way| (s, way))) {
                if left == 0 {
                    return;
                }
                left -= 1;
                let mut choice = self.best.ways();
                choice[stage] = way;
                self.take_if_faster(&choice);
            }
            if self.step == before {
                return;
            }
        }
    }

    /// Takes the same cut with these recomputes and offloads, if that fits and is faster.
    fn take_if_faster(&mut self, ways: &[(bool, bool)]) {
        if only_adds(&self.best.ways(), ways) {
            return;
        }
        let (recompute, offload): (Vec<_>, Vec<_>) = ways.iter().copied().unzip();
        let partition = &self.best.partition;
        let solution = self.problem.with_ways(partition, &recompute, &offload);
        let least = self.step;
        if let Some(solution) = solution {
            self.take_if(solution, |step, _| step < least);
        }
    }

    fn take_best_of(&mut self, partitions: &[Partition]) {
        for cut in partitions {
            let (least, sent) = (self.step.get(), self.best.traffic);
            let wanted = |step: Micros, traffic| {
                let close = SAME_STEP * least;
                let sooner = least - step.get();
                sooner > close || (sooner >= -close && traffic < sent)
            };
            if let Ok(solution) = self.problem.evaluate(cut) {
                self.take_if(solution, wanted);
            }
        }
    }

    /// Moves cuts by a layer, at most `left` times.
    fn move_cuts(&mut self, stages: usize, mut left: usize) {
        let mut improved = true;
        while improved {
            improved = false;
            for (cut, forward) in (1..stages).flat_map(|cut| [(cut, true), (cut, false)]) {
                if left == 0 {
                    return;
                }
                let Some(solution) = self.moved(cut, forward) else {
                    continue;
                };
                left -= 1;
                // Exact comparison, so that no two cuts alternate.
                let best = (self.step, self.best.traffic);
                improved |= self.take_if(solution, |step, traffic| (step, traffic) < best);
            }
        }
    }

    /// Returns the best with one cut moved by a layer, if that fits the memory of the stages.
    fn moved(&self, cut: usize, forward: bool) -> Option<Solution> {
        let partition = &self.best.partition;
        let mut balance = partition.balance();
        let (from, to) = if forward {
            (cut, cut - 1)
        } else {
            (cut - 1, cut)
        };
        balance[from] = balance[from].checked_sub(1).filter(|&left| left > 0)?;
        balance[to] += 1;
        let moved = Partition::from_balance(partition.layers(), &balance).ok()?;
        self.problem.evaluate(&moved).ok()
    }

    /// Takes another solution, if its step and traffic are wanted and it fits.
    fn take_if(&mut self, solution: Solution, wanted: impl Fn(Micros, Bytes) -> bool) -> bool {
        let costs = costs(self.problem, &solution);
        let step = self.program.makespan(&costs);
        if step.is_some_and(|step| !wanted(step, solution.traffic)) {
            return false;
        }
        let step = makespan(self.schedule, &costs);
        if !wanted(step, solution.traffic) || !fits_under(self.schedule, (self.problem, &costs)) {
            return false;
        }
        self.best = solution;
        self.step = step;
        true
    }
}
