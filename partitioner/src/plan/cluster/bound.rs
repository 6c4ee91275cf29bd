//! A lower bound on the step of every cut of a choice, with or without recompute.
//!
//! The inequality is in the book's page about the planner. Giving each device as many layers as possible
//! is right: if a device takes more, the later ones have less work, and their wait for the first
//! micro-batch grows by no more than that, since they do each layer at least once and no device is
//! faster than the fastest. A device may have no layer here, which only lowers the bound.

use super::numbers::{Backward, MachineNumbers, SizeCosts, total};

/// Relative reduction of the computed bound, against rounding in f64.
const ROUNDED: f64 = 1e-9;
/// Relative accuracy of the least limit.
const CLOSE: f64 = 1e-6;

/// A choice, in the form that the bound needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounded<'a> {
    pub(super) costs: &'a SizeCosts,
    pub(super) machine: &'a MachineNumbers,
    pub(super) backward: Backward,
    /// Micro-batches of a replica.
    pub(super) micro_batches: usize,
    /// Stages per device.
    pub(super) chunks: usize,
    /// Least time of a transfer between two devices.
    pub(super) hop: f64,
}

impl Bounded<'_> {
    /// Returns the bound in microseconds.
    ///
    /// # Complexity
    /// About twenty times that of [`is_below`](Self::is_below).
    pub(super) fn step(&self) -> f64 {
        let least = self.least();
        let bound = if self.has_many_stages() {
            self.one_stage_a_device(least)
        } else {
            least
        };
        bound * (1.0 - ROUNDED)
    }

    /// Whether the bound is below `limit` microseconds.
    ///
    /// # Complexity
    /// O(devices · log layers).
    pub(super) fn is_below(&self, limit: f64) -> bool {
        let below = self.least() * (1.0 - ROUNDED) < limit;
        below && (limit.is_infinite() || !self.has_many_stages() || self.reaches(limit))
    }

    fn has_many_stages(&self) -> bool {
        self.chunks == 1 && self.machine.speeds.len() > 1
    }

    /// The part of the bound that takes constant time.
    fn least(&self) -> f64 {
        if self.machine.speeds.len() == 1 {
            self.work().max(self.alone())
        } else {
            self.work()
        }
    }

    /// Bound from the work of all devices together, of the longest layer, and of one micro-batch there
    /// and back.
    fn work(&self) -> f64 {
        let Self { costs, machine, .. } = self;
        let (work, micro) = (costs.work(self.backward), self.micro_batches as f64);
        let all = micro * total(&work.all) / machine.speed;
        let longest = micro * costs.longest(self.backward) / machine.fastest;
        let hops = 2.0 * (machine.speeds.len() - 1) as f64 * self.hop;
        let once = total(&work.chain) / machine.fastest + hops;
        all.max(longest).max(once)
    }

    /// Bound for one device with one stage: the work and then the exchange.
    fn alone(&self) -> f64 {
        if self.chunks > 1 {
            return 0.0;
        }
        let work = total(&self.costs.work(self.backward).all) / self.machine.fastest;
        let exchange = self.machine.exchange(total(&self.costs.parameters));
        self.micro_batches as f64 * work + exchange
    }

    fn one_stage_a_device(&self, least: f64) -> f64 {
        let (mut low, mut high) = (least, self.enough().max(least));
        if self.reaches(low) {
            return low;
        }
        while high - low > CLOSE * high {
            let middle = f64::midpoint(low, high);
            if self.reaches(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }

    /// A limit with which the first device can take all layers.
    fn enough(&self) -> f64 {
        let Self { costs, machine, .. } = self;
        let work = self.micro_batches as f64 * total(&costs.work(self.backward).all);
        let exchange = machine.exchange(total(&costs.parameters));
        let hops = 2.0 * machine.speeds.len() as f64 * self.hop;
        work / machine.speeds[0] + exchange + hops + total(&costs.forward) / machine.fastest
    }

    /// Whether devices that take as many layers as `limit` permits take all layers.
    fn reaches(&self, limit: f64) -> bool {
        let layers = self.costs.layers();
        let mut start = 0;
        for device in 0..self.machine.speeds.len() {
            let (mut low, mut high) = (start, layers);
            while low < high {
                let middle = (low + high).div_ceil(2);
                if self.keeps(limit, device, (start, middle)) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            start = low;
            if start == layers {
                return true;
            }
        }
        false
    }

    /// Whether a device with these layers stays within `limit`.
    fn keeps(&self, limit: f64, device: usize, (start, end): (usize, usize)) -> bool {
        let Self { costs, machine, .. } = self;
        let (work, micro) = (costs.work(self.backward), self.micro_batches as f64);
        let own = |sums: &[f64]| sums[end] - sums[start];
        let speed = machine.speeds[device];
        let hops = device as f64 * self.hop;
        let passes =
            work.chain[start] / machine.fastest + 2.0 * hops + micro * own(&work.chain) / speed;
        let exchange = machine.exchange(own(&costs.parameters));
        let ends = costs.forward[start] / machine.fastest
            + hops
            + micro * own(&work.all) / speed
            + exchange;
        passes.max(ends) <= limit
    }
}
