//! Estimate of a choice's step and memory, in constant time.
//!
//! Estimates only determine the order of trials: a step is always simulated, memory always counted,
//! and untried choices are compared by their bounds.

use super::numbers::{Backward, SizeCosts, total};
use crate::builtin::ScheduleKind;
use crate::cost::Link;
use crate::machine::cluster::{Cluster, Layout};
use crate::machine::{AllReduce, Neighbours};
use crate::schedule::Shape;
use crate::solve::When;

/// Factor on an estimate that does not fit the memory; it grows with the missing memory.
const MISFIT: f64 = 10.0;

/// Numbers common to all choices of a layout.
#[derive(Clone, Debug)]
pub(super) struct LayoutNumbers {
    /// Mean speed of the used cards.
    speed: f64,
    /// Mean memory of the used cards; none if one has no limit.
    memory: Option<f64>,
    /// Replicas of a stage on a node, and number of nodes with replicas of it.
    together: usize,
    apart: usize,
    /// Whether some transfers of the pipeline go from node to node.
    crosses: bool,
}

impl LayoutNumbers {
    pub(super) fn new(cluster: &Cluster, layout: &Layout) -> Self {
        let kinds = layout.nodes.iter().map(|&(kind, nodes)| {
            let own = cluster.kinds()[kind];
            let cards = own.cards.min(layout.per_node) * nodes;
            (cards as f64, own.card)
        });
        let cards = layout.cards() as f64;
        let memory = kinds
            .clone()
            .map(|(count, card)| Some(count * card.memory?.get() as f64));
        let memory: Option<f64> = memory.sum();
        let (d, p, k) = (layout.replicas, layout.devices, layout.per_node);
        let together = match layout.neighbours {
            Neighbours::Replicas => d.min(k),
            Neighbours::Stages => (k / p).clamp(1, d),
        };
        let nodes: usize = layout.nodes.iter().map(|&(_, nodes)| nodes).sum();
        Self {
            speed: kinds.map(|(count, card)| count * card.speed).sum::<f64>() / cards,
            memory: memory.map(|all| all / cards),
            together,
            apart: if nodes == 1 { 1 } else { d.div_ceil(together) },
            crosses: nodes > 1 && (layout.neighbours == Neighbours::Replicas || p > k),
        }
    }
}

/// Inputs of an estimate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimated<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) layout: &'a Layout,
    pub(super) numbers: &'a LayoutNumbers,
    pub(super) costs: &'a SizeCosts,
    pub(super) kind: ScheduleKind,
    pub(super) shape: Shape,
    pub(super) recompute: When,
    /// Bytes of parameters, gradients and optimizer state per byte of parameters.
    pub(super) copies: f64,
}

impl Estimated<'_> {
    /// Estimated step in microseconds; much larger if it is unlikely to fit.
    pub(super) fn step(&self) -> f64 {
        let Shape {
            devices,
            chunks,
            micro_batches,
        } = self.shape;
        let (costs, p, v) = (self.costs, devices as f64, chunks as f64);
        let scale = 1.0 / (p * self.numbers.speed);
        let stages = p * v;
        let layers = costs.layers() as f64;
        // Equal layers cannot be divided better.
        let uneven = (layers / stages).ceil() * stages / layers;
        let again = costs.recompute * scale;
        let (needs, redone) = self.memory();
        let mut redo = self.recompute == When::Always;
        let mut misfit = 1.0;
        if let Some(limit) = self.numbers.memory {
            redo |= needs > limit && self.recompute == When::Auto;
            let needs = if redo { redone } else { needs };
            misfit = if needs > limit {
                MISFIT * (needs / limit)
            } else {
                1.0
            };
        }
        let backward = Backward::of(self.kind);
        let own = total(&costs.work(backward).all) * scale;
        let redone = redo && self.recompute != When::Always;
        let own = (own + if redone { again } else { 0.0 }) * uneven;
        let forward = total(&costs.forward) * scale;
        let halves = (costs.input_half * scale, costs.weight_half * scale);
        let fill = (p - 1.0) * bubble(self.kind, v, (forward, own - forward), halves);
        let hop = self.hop();
        let waited = match self.kind {
            ScheduleKind::GPipe
            | ScheduleKind::LoopedBfs
            | ScheduleKind::ZbH2
            | ScheduleKind::Interleaved1F1B
            | ScheduleKind::InterleavedZb => 0.0,
            _ if devices == 1 => 0.0,
            _ => 2.0 * hop * micro_batches as f64,
        };
        let hops = 2.0 * (stages - 1.0) * hop + waited;
        let step = micro_batches as f64 * own + fill + hops + self.exchange();
        step * misfit
    }

    /// Bytes of the fullest device, without recompute and with it.
    fn memory(&self) -> (f64, f64) {
        let Shape {
            devices, chunks, ..
        } = self.shape;
        let (costs, p) = (self.costs, devices as f64);
        let fixed = total(&costs.parameters) * self.copies / p;
        let own = costs.activations / p;
        let held = in_flight(self.kind, self.shape);
        let inputs = costs.output.get() as f64 * chunks as f64;
        if Backward::of(self.kind) == Backward::Halves {
            // Inputs of a pending weight pass are held in full, recomputed or not.
            return (fixed + own * held, fixed + own * held);
        }
        (
            fixed + own * held,
            // Each of a device's stages counts at its own peak, as in the solver.
            fixed + inputs * held + own,
        )
    }

    /// Time from one device to the next, in the worst place.
    fn hop(&self) -> f64 {
        if self.shape.devices == 1 {
            return 0.0;
        }
        let between = self.cluster.link_between().filter(|_| self.numbers.crosses);
        time(
            between.or(self.cluster.link_inside()),
            self.costs.output.get() as f64,
        )
    }

    /// Time of the exchange of the first stage's gradients, which follows all other work.
    fn exchange(&self) -> f64 {
        let stages = self.shape.stages() as f64;
        let d = self.layout.replicas as f64;
        if self.layout.replicas == 1 {
            return 0.0;
        }
        let bytes = total(&self.costs.parameters) / stages;
        let LayoutNumbers {
            together, apart, ..
        } = *self.numbers;
        let (k, n) = (together as f64, apart as f64);
        let inside = |bytes| time(self.cluster.link_inside(), bytes);
        let between = |bytes| match apart {
            1 => 0.0,
            _ => time(self.cluster.link_between(), bytes),
        };
        match self.cluster.all_reduce() {
            AllReduce::Direct => {
                let away = between(2.0 * bytes * (d - k) / d);
                away.max(inside(2.0 * bytes * (k - 1.0) / d))
            }
            AllReduce::Levels => {
                inside(2.0 * bytes * (k - 1.0) / k) + between(2.0 * bytes * (n - 1.0) / n / k)
            }
        }
    }
}

fn time(link: Option<Link>, bytes: f64) -> f64 {
    link.map_or(0.0, |link| {
        let bandwidth = link
            .bandwidth()
            .map_or(f64::INFINITY, |own| own.get() as f64);
        link.latency().get() + bytes / bandwidth * 1e6
    })
}

/// Idle time of a device per stage ahead of it, as stated in the files of the schedules;
/// approximate for V schedules.
fn bubble(kind: ScheduleKind, v: f64, (f, b): (f64, f64), (i, w): (f64, f64)) -> f64 {
    use ScheduleKind as Kind;
    match kind {
        Kind::Interleaved1F1B | Kind::LoopedBfs => (f + b) / v,
        Kind::ZbH1 => (f + i - w).max(f.max(i) / 2.0),
        Kind::InterleavedZb => (f + i - w).max(f.max(i) / 2.0) / v,
        Kind::ZbH2 => f + (i - w).max(0.0),
        Kind::Zbv => f / 2.0 + (f - w).abs().max((i - w).abs()),
        Kind::VHalf => (f + i + w) / 2.0,
        Kind::VMin => 0.65 * (f + i + w),
        Kind::DualPipeV => f64::midpoint(f, i),
        _ => f + b,
    }
}

/// Micro-batches in flight on the fullest device, in device-micro-batches.
fn in_flight(kind: ScheduleKind, shape: Shape) -> f64 {
    use ScheduleKind as Kind;
    let (p, v, m) = (
        shape.devices as f64,
        shape.chunks as f64,
        shape.micro_batches as f64,
    );
    let held = match kind {
        Kind::GPipe | Kind::LoopedBfs => m,
        Kind::Interleaved1F1B | Kind::InterleavedZb => p + (p - 1.0) / v,
        Kind::ZbH2 => 2.0 * p - 1.0,
        Kind::VHalf => p / 2.0 + 1.0,
        Kind::VMin => (p + 4.0) / 3.0,
        Kind::DualPipeV => p + 1.0,
        _ => p,
    };
    held.min(m)
}
