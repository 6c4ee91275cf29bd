//! Candidates that get more effort: their cuts are moved one by one, and a schedule is computed for
//! their costs.

use std::collections::{HashMap, HashSet};

use super::candidate::PlanCandidate;
use super::why::SAME;
use crate::units::Micros;

/// Number of the fastest candidates for which a schedule is computed, per choice that a flag can
/// make.
const COMPUTED: usize = 3;
/// Limit of actions of candidates with other chunks and micro-batches than the fastest of their
/// schedule: keeps a plan for 64 devices within seconds. Up to 8 devices all fit.
const ACTIONS: usize = 1 << 16;

/// Moves the candidates that get more effort to the front of sorted ones, keeping the order within
/// both groups; returns their number.
///
/// They are the fastest of each schedule with each [means](PlanJob::means), and then, within the
/// limit of actions, the fastest with each [choice](PlanJob::choice). Neither depends on other
/// candidates, so leaving a choice open is never slower than making it.
pub(super) fn leaders_first(candidates: &mut Vec<PlanCandidate>) -> usize {
    let (mut kinds, mut choices) = (HashSet::new(), HashSet::new());
    let mut left = ACTIONS;
    let (mut leaders, rest): (Vec<_>, Vec<_>) = candidates.drain(..).partition(|candidate| {
        let job = &candidate.job;
        let leads = kinds.insert((job.kind, job.means()));
        if !choices.insert((job.kind, job.choice())) || leads {
            return leads;
        }
        let rest = left.checked_sub(job.actions());
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    let count = leaders.len();
    leaders.extend(rest);
    *candidates = leaders;
    count
}

/// Returns the sorted candidates for which a schedule is computed: equally many with each
/// [choice](PlanJob::choice).
pub(super) fn fastest(candidates: &[PlanCandidate]) -> Vec<&PlanCandidate> {
    let mut counts = HashMap::new();
    let counted = candidates.iter().filter(|candidate| {
        let count = counts.entry(candidate.job.choice()).or_insert(0);
        *count += 1;
        *count <= COMPUTED
    });
    counted.collect()
}

/// Returns the index of the simplest of the sorted candidates that are as fast as the first.
pub(super) fn simplest(sorted: &[PlanCandidate]) -> usize {
    let fastest = sorted.first().map_or(Micros::ZERO, |own| own.step);
    let equal = |own: &&PlanCandidate| own.step.get() <= fastest.get() * (1.0 + SAME);
    let equals = sorted.iter().take_while(equal).enumerate();
    let (place, _) = equals.min_by_key(|(_, own)| own.simplicity()).unzip();
    place.unwrap_or(0)
}
