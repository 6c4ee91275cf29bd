//! Sensitivity of the step to faster parts.

use super::{Simulation, simulate};
use crate::cost::{Costs, EdgeTimes};
use crate::ids::StageId;
use crate::units::Micros;
use std::cmp::Reverse;

/// A part that could be made faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SensitivityTarget {
    /// A stage: move layers away, recompute less, a faster device.
    Stage(StageId),
    /// All transfers: a faster link, smaller values.
    Transfers,
    /// All exchanges of gradients between replicas: a faster link between these.
    Exchange,
}

/// Gain from making a part faster.
#[doc(alias = "what-if")]
#[doc(alias = "bottleneck")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// The part that is made faster.
    pub target: SensitivityTarget,
    /// Share by which its times shrink, 0 to 1. The gain is largest up to this share: beyond it
    /// other parts limit the step.
    pub shrink: f64,
    /// That share of a micro-batch's work on the stage (forward and joint backward); zero for
    /// transfers and exchanges.
    pub amount: Micros,
    /// Reduction of the step.
    pub saves: Micros,
}

/// Smallest share that is tried, and accuracy of the end of the line.
const FIRST: f64 = 1.0 / 1024.0;

/// Most stages that are examined.
const STAGES: usize = 8;

impl Simulation {
    /// Returns the parts whose speed-up would shorten the step most: each stage on the critical
    /// path, and the transfers, best first, with the share up to which shrinking pays.
    ///
    /// # Complexity
    /// About 20 simulations for each of the eight stages with the largest share of
    /// the critical path.
    pub fn sensitivities(&self) -> Vec<Sensitivity> {
        ranking(self)
    }
}

/// Returns every target on the critical path, best first.
fn ranking(simulation: &Simulation) -> Vec<Sensitivity> {
    let path = simulation.critical_path();
    let mut work: Vec<(Micros, StageId)> = (0..simulation.costs.stages())
        .map(|stage| (path.work(StageId(stage)), StageId(stage)))
        .filter(|&(work, _)| work > Micros::ZERO)
        .collect();
    work.sort_unstable_by_key(|&(work, stage)| (Reverse(work), stage));
    let targets = work
        .into_iter()
        .take(STAGES)
        .map(|(_, stage)| SensitivityTarget::Stage(stage));
    let transfers = (path.transfers() > Micros::ZERO).then_some(SensitivityTarget::Transfers);
    let mut sensitivities: Vec<Sensitivity> = targets
        .chain(transfers)
        .chain((path.exchange > Micros::ZERO).then_some(SensitivityTarget::Exchange))
        .map(|target| measure(simulation, target))
        .filter(|sensitivity| sensitivity.saves > Micros::ZERO)
        .collect();
    sensitivities.sort_by_key(|sensitivity| Reverse(sensitivity.saves));
    sensitivities
}

/// The makespan is a convex function of one target's scale (a maximum of sums; nearly so if values
/// of several devices overtake each other on a shared card): going down from 1 it falls along a
/// straight line until another part limits the step. Bisection finds where it deviates from that
/// line by a twentieth.
fn measure(simulation: &Simulation, target: SensitivityTarget) -> Sensitivity {
    let now = simulation.makespan().get();
    let saved = |shrink: f64| {
        let costs = shrunk(&simulation.costs, target, 1.0 - shrink);
        now - simulate(&simulation.schedule, &costs).makespan().get()
    };
    let slope = saved(FIRST) / FIRST;
    let straight = |shrink: f64| saved(shrink) >= slope * shrink * 0.95;
    let (mut good, mut bad) = (FIRST, 1.0);
    if straight(bad) {
        good = bad;
    }
    while bad - good > FIRST {
        let middle = f64::midpoint(good, bad);
        if straight(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Sensitivity {
        target,
        shrink: good,
        amount: amount(&simulation.costs, target) * good,
        saves: Micros::saturating(saved(good)),
    }
}

fn amount(costs: &Costs, target: SensitivityTarget) -> Micros {
    match target {
        SensitivityTarget::Stage(stage) => costs.stage(stage).forward + costs.stage(stage).backward,
        SensitivityTarget::Transfers | SensitivityTarget::Exchange => Micros::ZERO,
    }
}

fn shrunk(costs: &Costs, target: SensitivityTarget, factor: f64) -> Costs {
    let less = |times: EdgeTimes| EdgeTimes {
        occupancy: times.occupancy * factor,
        latency: times.latency * factor,
    };
    let stages = || (0..costs.stages()).map(StageId);
    match target {
        SensitivityTarget::Stage(stage) => costs.clone().scaled(stage, factor),
        SensitivityTarget::Transfers => stages().fold(costs.clone(), |scaled, edge| {
            scaled.with_edge(edge, less(costs.edge(edge)))
        }),
        SensitivityTarget::Exchange => stages().fold(costs.clone(), |scaled, stage| {
            scaled.with_exchange(stage, less(costs.exchange(stage)))
        }),
    }
}
