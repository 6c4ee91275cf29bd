//! The solver's bottleneck is that of the best of all cuts.

use proptest::prelude::*;

use super::by_hand::{by_hand, caps, every_cut};
use super::case::case;
use crate::ids::StageId;
use crate::solve::memory::{AWAY, PLAIN, REDO};
use crate::solve::{Problem, Solution, SolveError, Strategy as Cutting, block_partition};
use crate::units::Bytes;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The optimum, or the least addition to the limits, agrees with exhaustive search.
    #[test]
    fn solve_is_exact(case in case()) {
        let problem = case.problem();
        let caps = caps(&problem);
        let (mut best, mut least) = (f64::INFINITY, u64::MAX);
        every_cut(&problem, &mut |whole| {
            let over = whole.used.iter().zip(&caps);
            let over = over.map(|(used, cap)| used.saturating_sub(*cap)).max();
            least = least.min(over.unwrap());
            if over == Some(0) {
                best = best.min(whole.bottleneck);
            }
        });
        match problem.solve() {
            Ok(solution) => {
                prop_assert!((solution.bottleneck.get() - best).abs() <= 1e-9 * best.max(1.0),
                    "{} instead of {best}", solution.bottleneck.get());
                prop_assert!(solution.is_optimal());
                keeps_its_word(&problem, &solution, &caps)?;
            }
            Err(SolveError::Infeasible(shortfall)) => {
                prop_assert_eq!(best, f64::INFINITY);
                prop_assert_eq!(shortfall.missing().0, least);
                prop_assert_eq!(shortfall.raise[0], (shortfall.device, Bytes(least)));
            }
            Err(SolveError::Partition(_)) => prop_assert!(least == u64::MAX),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Checks the solution's numbers against its cut, which must fit and have no empty stage.
fn keeps_its_word(
    problem: &Problem,
    solution: &Solution,
    caps: &[u64],
) -> Result<(), TestCaseError> {
    let mut used = vec![0; caps.len()];
    for stage in 0..problem.stages.len() {
        let range = solution.partition.range(StageId(stage));
        prop_assert!(!range.is_empty());
        let redo = if solution.recompute[stage] {
            REDO
        } else {
            PLAIN
        };
        let away = if solution.offload[stage] { AWAY } else { PLAIN };
        let mode = redo | away;
        let (time, bytes) = by_hand(problem, stage, mode, range.start, range.end);
        prop_assert!((solution.stage_times[stage].get() - time).abs() < 1e-9);
        prop_assert_eq!(solution.stage_bytes[stage], Bytes(bytes));
        used[problem.stages[stage].device.0] += bytes;
    }
    prop_assert!(used.iter().zip(caps).all(|(used, cap)| used <= cap));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Never worse than the simpler strategies or the block heuristic.
    #[test]
    fn solve_is_never_worse(case in case(), balance_seed in prop::collection::vec(1_usize..4, 4)) {
        let problem = case.problem();
        let stages = problem.stages.len();
        let weights: Vec<u64> = problem.costs.iter()
            .map(|c| (c.forward + c.backward).get() as u64).collect();
        let block = block_partition(&weights, stages);
        let manual: Vec<usize> = balance_seed.iter().copied().cycle().take(stages).collect();
        for other in [Cutting::Parameters, Cutting::Uniform,
                      Cutting::Manual(block), Cutting::Manual(manual)] {
            if let Ok(other) = problem.solve_by(&other) {
                prop_assert!(problem.solve().unwrap().bottleneck <= other.bottleneck);
            }
        }
    }
}
