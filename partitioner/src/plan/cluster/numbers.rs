//! Numbers of a model and of a machine for bounds and estimates.

use crate::builtin::ScheduleKind;
use crate::ids::DeviceId;
use crate::machine::Machine;
use crate::profile::{LayerCost, Profile};
use crate::solve::When;
use crate::units::Bytes;

/// Form of a schedule's backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backward {
    /// Joint only.
    Joint,
    /// In halves as well.
    Halves,
}

impl Backward {
    pub(super) fn of(kind: ScheduleKind) -> Self {
        use ScheduleKind::{GPipe, Interleaved1F1B, LoopedBfs, OneFOneB};
        match kind {
            GPipe | OneFOneB | Interleaved1F1B | LoopedBfs => Self::Joint,
            _ => Self::Halves,
        }
    }
}

/// Prefix sums of microseconds of one micro-batch on a device of speed 1; the first entry is 0.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Forward and the least time until the input gradient is ready.
    pub(super) chain: Vec<f64>,
    /// Forward and the least time of the backward.
    pub(super) all: Vec<f64>,
}

/// Costs of a micro-batch of some size.
#[derive(Clone, Debug)]
pub(super) struct SizeCosts {
    /// Prefix sums of forwards.
    pub(super) forward: Vec<f64>,
    joint: Work,
    halves: Work,
    /// The longest layer, jointly and in halves.
    longest: [f64; 2],
    /// Prefix sums of bytes of parameters.
    pub(super) parameters: Vec<f64>,
    /// Sums over all layers.
    pub(super) input_half: f64,
    pub(super) weight_half: f64,
    pub(super) recompute: f64,
    pub(super) activations: f64,
    /// Mean output of a layer, and the least output of any layer but the last.
    pub(super) output: Bytes,
    pub(super) least_output: Bytes,
}

impl SizeCosts {
    pub(super) fn new(profile: &Profile, size: usize, recompute: When) -> Self {
        let costs = profile.costs(size);
        let again = |cost: &LayerCost| match recompute {
            When::Always => cost.recompute.get(),
            _ => 0.0,
        };
        let joint = |cost: &LayerCost| cost.forward.get() + cost.backward.get() + again(cost);
        let halves = |cost: &LayerCost| {
            let both = cost.input.get() + cost.weight.get();
            cost.forward.get() + cost.backward.get().min(both) + again(cost)
        };
        let chain = |cost: &LayerCost| {
            cost.forward.get() + cost.backward.get().min(cost.input.get()) + again(cost)
        };
        let longest = |of: &dyn Fn(&LayerCost) -> f64| costs.iter().map(of).fold(0.0, f64::max);
        let sum = |of: &dyn Fn(&LayerCost) -> f64| costs.iter().map(of).sum::<f64>();
        let inner = &costs[..costs.len() - 1];
        let outputs: u64 = inner.iter().map(|cost| cost.output.get()).sum();
        Self {
            forward: prefix(&costs, &|cost| cost.forward.get()),
            joint: Work {
                chain: prefix(&costs, &joint),
                all: prefix(&costs, &joint),
            },
            halves: Work {
                chain: prefix(&costs, &chain),
                all: prefix(&costs, &halves),
            },
            longest: [longest(&joint), longest(&halves)],
            parameters: prefix(&costs, &|cost| cost.parameters.get() as f64),
            input_half: sum(&|cost| cost.input.get()),
            weight_half: sum(&|cost| cost.weight.get()),
            recompute: sum(&|cost| cost.recompute.get()),
            activations: sum(&|cost| cost.activations.get() as f64),
            output: Bytes(outputs / inner.len().max(1) as u64),
            least_output: inner
                .iter()
                .map(|cost| cost.output)
                .min()
                .unwrap_or_default(),
        }
    }

    pub(super) fn work(&self, backward: Backward) -> &Work {
        match backward {
            Backward::Joint => &self.joint,
            Backward::Halves => &self.halves,
        }
    }

    pub(super) fn longest(&self, backward: Backward) -> f64 {
        self.longest[usize::from(backward == Backward::Halves)]
    }

    pub(super) fn layers(&self) -> usize {
        self.forward.len() - 1
    }
}

fn prefix(costs: &[LayerCost], of: &dyn Fn(&LayerCost) -> f64) -> Vec<f64> {
    let mut sum = 0.0;
    let running = costs.iter().map(|cost| {
        sum += of(cost);
        sum
    });
    std::iter::once(0.0).chain(running).collect()
}

/// The last entry of prefix sums.
pub(super) fn total(sums: &[f64]) -> f64 {
    sums.last().copied().unwrap_or(0.0)
}

/// Numbers of a machine for bounds.
#[derive(Clone, Debug)]
pub(super) struct MachineNumbers {
    pub(super) speeds: Vec<f64>,
    pub(super) fastest: f64,
    /// Sum of the speeds.
    pub(super) speed: f64,
    exchange: Exchange,
}

/// Lower bound of an exchange of gradients: `latency + slope · bytes - rounded`.
#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    latency: f64,
    slope: f64,
    rounded: f64,
}

/// Number of bytes from which the time per byte is derived.
const MANY: f64 = (1_u64 << 40) as f64;

impl MachineNumbers {
    pub(super) fn new(machine: &Machine) -> Self {
        let speeds: Vec<f64> = machine.devices().iter().map(|one| one.speed).collect();
        Self {
            fastest: speeds.iter().copied().fold(0.0, f64::max),
            speed: speeds.iter().sum(),
            speeds,
            exchange: least_exchange(machine),
        }
    }

    /// Least time of the exchange of that many bytes of gradients, on any device.
    pub(super) fn exchange(&self, bytes: f64) -> f64 {
        let Exchange {
            latency,
            slope,
            rounded,
        } = self.exchange;
        if bytes > 0.0 {
            latency + (slope * bytes - rounded).max(0.0)
        } else {
            0.0
        }
    }
}

/// Returns the least over all devices. An exchange is proportional to its bytes, except for parts
/// that are rounded down to whole bytes.
fn least_exchange(machine: &Machine) -> Exchange {
    if machine.replicas() == 1 {
        return Exchange::default();
    }
    // On equal nodes, the surroundings of a device repeat with each node.
    let counts = machine.nodes().map_or(Vec::new(), |nodes| nodes.devices());
    let alike = counts.windows(2).all(|both| both[0] == both[1]);
    let again = counts.first().copied().filter(|_| alike);
    let devices = 0..machine.devices().len().min(again.unwrap_or(usize::MAX));
    let of = |device| {
        let times = machine.exchange(DeviceId(device), Bytes(MANY as u64));
        (times.occupancy.get() / MANY, times.latency.get())
    };
    let all = devices.map(of);
    let least = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.min(b.1));
    let (slope, latency) = all.reduce(least).unwrap_or_default();
    let links = machine.link().into_iter();
    let links = links.chain(machine.nodes().map(|nodes| nodes.link()));
    let byte = links.map(|link| link.transfer(Bytes(1)).occupancy.get());
    Exchange {
        latency,
        slope,
        rounded: 4.0 * machine.replicas() as f64 * byte.fold(0.0, f64::max),
    }
}
