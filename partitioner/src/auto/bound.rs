//! A lower bound on the makespan of every training schedule with a given placement.
//!
//! With F, I, W, B a stage's times, G = min(B, I) the least time until its input gradient is ready,
//! A = min(B, I+W) the least whole backward, and T(s) the time of a value over the edge from s to
//! s+1 between different devices:
//!
//! 1. a device cannot start before the first micro-batch reaches the lowest of
//!    its stages, a: Σ_{s<a} (F(s)+T(s)); then it has m·Σ (F+A) of work;
//! 2. after its last gradient, which is after m·Σ (F+G), that gradient still goes
//!    through all stages before a, or before a later one: Σ_{s<a} (G(s)+T(s)), with A
//!    instead of G for stage 0 (for a = 0, its own W is left out);
//! 3. one micro-batch goes through all stages and back.
//!
//! The bound is the largest of these over all devices. It ignores memory caps, busy links, and
//! devices that wait for each other in between.

use crate::cost::Costs;
use crate::ids::StageId;
use crate::schedule::{Placement, Shape};
use crate::units::Micros;

pub(super) fn makespan(shape: Shape, placement: Placement, costs: &Costs) -> Micros {
    let owner = |stage| placement.device(StageId(stage), shape.devices).index() as u32;
    let owner: Vec<u32> = (0..shape.stages()).map(owner).collect();
    makespan_of(&owner, (shape.devices, shape.micro_batches), costs)
}

/// Same as `makespan`, for the device of each stage.
pub(crate) fn makespan_of(
    owner: &[u32],
    (devices, micro_batches): (usize, usize),
    costs: &Costs,
) -> Micros {
    let stage = |s: usize| Stage::new(owner, costs, s);
    let stages: Vec<Stage> = (0..owner.len()).map(stage).collect();
    let m = micro_batches as f64;
    let device = |device: usize| {
        let own = || (0..owner.len()).filter(move |stage| owner[*stage] as usize == device);
        let lowest = own().min().unwrap_or(0);
        let before = &stages[..lowest];
        let head: Micros = before.iter().map(|s| s.forward + s.transfer).sum();
        let work: Micros = own().map(|s| stages[s].forward + stages[s].backward).sum();
        let chain: Micros = own().map(|s| stages[s].forward + stages[s].gradient).sum();
        let busy = head + work * m;
        let through = head + chain * m + back(before);
        busy.max(through)
    };
    let there: Micros = stages.iter().map(|s| s.forward + s.transfer).sum();
    let back_transfers: Micros = stages.iter().map(|s| s.transfer).sum();
    let last = stages.len() - 1;
    let once = there + back_transfers + back_work(&stages[..=last]);
    (0..devices).map(device).fold(once, Micros::max)
}

/// Time of a gradient back through `stages`, the first ones of the model.
fn back(stages: &[Stage]) -> Micros {
    stages.iter().map(|s| s.transfer).sum::<Micros>() + back_work(stages)
}

fn back_work(stages: &[Stage]) -> Micros {
    let rest = stages.iter().skip(1).map(|s| s.gradient).sum();
    stages.first().map_or(Micros::ZERO, |first| first.backward) + rest
}

struct Stage {
    forward: Micros,
    /// G of the module's docs.
    gradient: Micros,
    /// A of the module's docs.
    backward: Micros,
    /// T of the module's docs.
    transfer: Micros,
}

impl Stage {
    fn new(owner: &[u32], costs: &Costs, stage: usize) -> Self {
        let times = costs.stage(StageId(stage));
        let edge = costs.edge(StageId(stage));
        let crosses = (owner.get(stage + 1)).is_some_and(|next| *next != owner[stage]);
        Self {
            forward: times.forward,
            gradient: times.backward.min(times.input),
            backward: times.backward.min(times.input + times.weight),
            transfer: if crosses {
                edge.occupancy + edge.latency
            } else {
                Micros::ZERO
            },
        }
    }
}
