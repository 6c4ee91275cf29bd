//! What would shorten the step most.

use super::{Simulation, simulate};
use crate::cost::Costs;
use crate::ids::StageId;
use crate::units::Micros;
use std::cmp::Reverse;

/// What could be made faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A stage: move layers away, recompute less, a faster device.
    Stage(StageId),
    /// All transfers: a faster link, smaller values.
    Transfers,
}

/// How much making something faster would bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Help {
    /// What.
    pub target: Target,
    /// The share by which its times shrink, 0 to 1. The first part of the way
    /// brings most: beyond this share other things hold the step up.
    pub shrink: f64,
    /// What that share is of a micro-batch's work on the stage (forward and joint
    /// backward); for transfers nothing.
    pub amount: Micros,
    /// By how much the step is shorter then.
    pub saves: Micros,
}

/// The smallest share that is tried, and how exactly the end of the line is found.
const FIRST: f64 = 1.0 / 1024.0;

/// How many stages are looked at.
const STAGES: usize = 8;

/// Every target that is on the critical path, best first.
pub(super) fn ranking(simulation: &Simulation) -> Vec<Help> {
    let path = simulation.critical_path();
    let mut work: Vec<(Micros, StageId)> = (0..simulation.costs.stages())
        .map(|stage| (path.work(StageId(stage)), StageId(stage)))
        .filter(|&(work, _)| work > Micros::ZERO)
        .collect();
    work.sort_unstable_by_key(|&(work, stage)| (Reverse(work), stage));
    let targets = work
        .into_iter()
        .take(STAGES)
        .map(|(_, stage)| Target::Stage(stage));
    let transfers = (path.transfers() > Micros::ZERO).then_some(Target::Transfers);
    let mut helps: Vec<Help> = targets
        .chain(transfers)
        .map(|target| measure(simulation, target))
        .filter(|help| help.saves > Micros::ZERO)
        .collect();
    helps.sort_by_key(|help| Reverse(help.saves));
    helps
}

/// The makespan is a convex function of one target's scale (a maximum of sums):
/// going down from 1 it falls along a straight line until something else holds the
/// step up. Where it leaves that line by a twentieth is found by bisection.
fn measure(simulation: &Simulation, target: Target) -> Help {
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
    Help {
        target,
        shrink: good,
        amount: amount(&simulation.costs, target) * good,
        saves: Micros::saturating(saved(good)),
    }
}

fn amount(costs: &Costs, target: Target) -> Micros {
    match target {
        Target::Stage(stage) => costs.stage(stage).forward + costs.stage(stage).backward,
        Target::Transfers => Micros::ZERO,
    }
}

fn shrunk(costs: &Costs, target: Target, factor: f64) -> Costs {
    match target {
        Target::Stage(stage) => costs.clone().scaled(stage, factor),
        Target::Transfers => {
            (0..costs.stages())
                .map(StageId)
                .fold(costs.clone(), |scaled, edge| {
                    let mut times = costs.edge(edge);
                    times.occupancy = times.occupancy * factor;
                    times.latency = times.latency * factor;
                    scaled.with_edge(edge, times)
                })
        }
    }
}
