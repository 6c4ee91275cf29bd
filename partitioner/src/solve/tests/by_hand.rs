//! The documented costs and memory of every cut, computed layer by layer.

use crate::cost::Link;
use crate::solve::memory::{AWAY, Held, REDO, Ways};
use crate::solve::{Problem, Transfer};

/// Returns the documented time and memory of a stage, computed layer by layer.
pub(super) fn by_hand(
    problem: &Problem,
    stage: usize,
    mode: usize,
    start: usize,
    end: usize,
) -> (f64, u64) {
    let redo = mode & REDO != 0;
    let slot = problem.stages[stage];
    let layers = &problem.costs[start..end];
    let sum = |of: &dyn Fn(&crate::profile::LayerCost) -> f64| layers.iter().map(of).sum::<f64>();
    let mut time = sum(&|l| l.forward.get());
    time += if slot.split {
        sum(&|l| l.input.get() + l.weight.get())
    } else {
        sum(&|l| l.backward.get())
    };
    if redo {
        time += sum(&|l| l.recompute.get());
    }
    time /= problem.machine.devices()[slot.device.0].speed;
    if stage + 1 < problem.stages.len() && problem.stages[stage + 1].device != slot.device {
        let (next, output) = (
            problem.stages[stage + 1].device,
            layers[layers.len() - 1].output,
        );
        let transfer = problem.machine.transfer(slot.device, next, output);
        let busy = transfer.occupancy.get();
        if problem.transfer == Transfer::Waited {
            let ways = if problem.training { 2.0 } else { 1.0 };
            time += ways * (busy + transfer.latency.get());
        }
        time = time.max(busy);
    }
    let away = mode & AWAY != 0 && slot.leaves;
    if let Some(link) = problem.machine.host_link().filter(|_| away && !redo) {
        let ways = [link.to_host, link.to_device];
        let moved = |link: Link| sum(&|l| link.transfer(l.activations).occupancy.get());
        time = ways.into_iter().map(moved).fold(time, f64::max);
    }
    if !problem.with_graphs_on() {
        let passes = |l: &crate::profile::LayerCost| {
            let halves = l.host.input.get() + l.host.weight.get();
            let backward = if slot.split {
                halves
            } else {
                l.host.backward.get()
            };
            let again = if redo { l.host.recompute.get() } else { 0.0 };
            l.host.forward.get() + backward + again
        };
        time = time.max(sum(&passes));
    }
    (
        time,
        bytes_by_hand(problem, slot.held, (redo, away), start, end),
    )
}

fn bytes_by_hand(
    problem: &Problem,
    held: Held,
    (redo, away): (bool, bool),
    start: usize,
    end: usize,
) -> u64 {
    let layers = &problem.costs[start..end];
    let into = |layer: usize| match layer {
        0 => problem.input.0,
        _ => problem.costs[layer - 1].output.0,
    };
    let parameters: u64 = layers.iter().map(|l| l.parameters.0).sum();
    if !problem.training {
        let around = |l: usize| into(l) + problem.costs[l].output.0 + problem.costs[l].temporary.0;
        return parameters + (start..end).map(around).max().unwrap();
    }
    let Ways { joint, halves } = problem.ways;
    let cost = |l: usize| &problem.costs[l];
    let after = |l: usize| if halves { cost(l).after_input.0 } else { 0 };
    let kept = |l: usize| cost(l).activations.0.max(after(l));
    // While a layer runs: the bytes kept by the layers up to it, those kept by later layers between
    // the halves, and its temporaries.
    let running = |l: usize| {
        let plain: u64 = (start..=l).map(|l| cost(l).activations.0).sum();
        let halved: u64 = (start..=l).map(after).sum();
        let behind: u64 = (l + 1..end).map(after).sum();
        let mut most = 0;
        if joint {
            most = plain + cost(l).temporary.0;
        }
        if halves {
            most = most.max(plain + behind + cost(l).input_temporary.0);
            most = most.max(halved + cost(l).weight_temporary.0);
        }
        most
    };
    let running = (start..end).map(running).max().unwrap();
    // Including gradients and two moments.
    let throughout = (3 + problem.sets) * parameters;
    let activations: u64 = (start..end).map(kept).sum();
    let there = if away {
        held.offloading
    } else {
        held.in_flight
    };
    if problem.with_graphs_on() && !redo && !away {
        return throughout + held.in_flight * (running + parameters + into(start));
    }
    let others = if redo {
        let loss = if end == problem.costs.len() {
            cost(end - 1).loss.0.min(cost(end - 1).activations.0)
        } else {
            0
        };
        let waiting = there.saturating_sub(held.backward) * loss;
        (held.backward - 1) * activations + there * into(start) + waiting
    } else {
        (there - 1) * activations
    };
    throughout + others + running
}

/// A cut of the layers, with a mode for each stage.
pub(super) struct Whole<'a> {
    pub(super) bottleneck: f64,
    /// Bytes of one micro-batch sent between devices on the way forward.
    pub(super) traffic: u64,
    /// Bytes per device.
    pub(super) used: &'a [u64],
}

/// Visits every cut with every choice of recompute.
pub(super) fn every_cut(problem: &Problem, visit: &mut dyn FnMut(Whole<'_>)) {
    let mut used = vec![0; problem.machine.devices().len()];
    extend(problem, (0, 0), (0.0, 0), &mut used, visit);
}

/// Returns the bytes sent after `stage` if it ends before layer `end`.
fn sent(problem: &Problem, stage: usize, end: usize) -> u64 {
    let device = |stage: usize| problem.stages.get(stage).map(|slot| slot.device);
    match device(stage + 1) {
        Some(next) if Some(next) != device(stage) => problem.costs[end - 1].output.0,
        _ => 0,
    }
}

fn extend(
    problem: &Problem,
    (stage, start): (usize, usize),
    (worst, traffic): (f64, u64),
    used: &mut Vec<u64>,
    visit: &mut dyn FnMut(Whole<'_>),
) {
    let (stages, layers) = (problem.stages.len(), problem.costs.len());
    if stage == stages {
        let bottleneck = worst;
        return visit(Whole {
            bottleneck,
            traffic,
            used,
        });
    }
    let last = layers - (stages - stage - 1);
    let first = if stage + 1 == stages {
        layers
    } else {
        start + 1
    };
    for end in first..=last {
        for mode in problem.modes() {
            let (time, bytes) = by_hand(problem, stage, mode, start, end);
            let device = problem.stages[stage].device.0;
            used[device] += bytes;
            let so_far = (worst.max(time), traffic + sent(problem, stage, end));
            extend(problem, (stage + 1, end), so_far, used, visit);
            used[device] -= bytes;
        }
    }
}

pub(super) fn caps(problem: &Problem) -> Vec<u64> {
    let cap = |device: &crate::machine::Device| device.memory.unwrap().0;
    problem.machine.devices().iter().map(cap).collect()
}
