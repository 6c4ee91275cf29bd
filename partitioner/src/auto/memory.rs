//! Memory of a stage's actions, in the form that searches need.

use super::state::Move;
use crate::cost::StageMemory;
use crate::schedule::Shape;
use crate::units::Bytes;

/// Bytes of a stage, per micro-batch except for gradients.
#[derive(Clone, Copy)]
pub(super) struct StageBytes {
    /// Held from forward to backward: everything, and with a separate recompute.
    kept: u64,
    dropped: u64,
    /// Part of `kept` that a single micro-batch may offload to the host.
    leaves: u64,
    /// Rebuilt at the start of a backward.
    rebuilt: u64,
    /// Held between the halves of the backward.
    after_input: u64,
    working: u64,
    gradients: u64,
}

/// Upper bound on a stage's memory: all micro-batches in flight at once, wherever they are, and as
/// many gradients waiting for the stage before.
pub(super) fn most(memory: StageMemory, shape: Shape) -> u64 {
    let always = [
        memory.parameters,
        memory.gradients,
        memory.optimizer,
        memory.graphs,
        memory.working,
    ];
    let each = memory.activation.max(memory.after_input()).get();
    let each = each.saturating_add(memory.recomputed.get());
    let each = each.saturating_add(memory.sent.get());
    let flying = each.saturating_mul(shape.micro_batches as u64);
    let always = always.into_iter().map(Bytes::get);
    always.fold(flying, u64::saturating_add)
}

/// Bytes that an action adds while it runs, and the change when it has ended.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) during: u64,
    pub(super) after: i64,
}

impl StageBytes {
    /// Treats offloaded activations as gone: the least that the device may hold.
    pub(super) fn new(memory: StageMemory) -> Self {
        let kept = memory.activation - memory.offloaded;
        Self {
            kept: kept.get(),
            dropped: (kept - memory.recomputable).get(),
            leaves: memory.offloadable.get().min(kept.get()),
            rebuilt: memory.recomputed.get(),
            after_input: memory.after_input().get(),
            working: memory.working.get(),
            gradients: memory.gradients.get(),
        }
    }

    /// Whether a split backward holds no more than a joint one.
    pub(super) fn halves_hold_no_more(&self) -> bool {
        self.after_input <= self.kept + self.rebuilt
    }

    /// Bytes that a micro-batch holds from its forward on.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// Least of these bytes, if a single micro-batch may be offloaded.
    pub(super) fn least_kept(&self) -> u64 {
        self.kept - self.leaves
    }

    /// Bytes that a micro-batch holds if its activations are dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes that a micro-batch holds between the halves of the backward.
    pub(super) fn after_input(&self) -> u64 {
        self.after_input
    }

    /// Whether a separate action may recompute.
    pub(super) fn may_drop(&self) -> bool {
        self.dropped < self.kept
    }

    /// Whether a single micro-batch may be offloaded to the host.
    pub(super) fn may_leave(&self) -> bool {
        self.leaves > 0
    }

    /// Bytes in the host's memory then.
    pub(super) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Returns the change by `what`; `first` means that the stage has no gradients of parameters yet.
    pub(super) fn step(&self, what: Move, first: bool) -> Step {
        let made = if first { self.gradients as i64 } else { 0 };
        let all = self.kept + self.rebuilt;
        let (takes, after) = match what {
            Move::Forward => (self.kept, self.kept as i64),
            Move::Dropping => (self.dropped, self.dropped as i64),
            Move::Recompute => {
                let back = self.kept - self.dropped;
                (back, back as i64)
            }
            Move::Joint => (self.rebuilt, made - self.kept as i64),
            Move::Input => {
                let takes = self.rebuilt + self.after_input.saturating_sub(all);
                (takes, self.after_input as i64 - self.kept as i64)
            }
            Move::Weight => (0, made - self.after_input as i64),
        };
        Step {
            during: takes + self.working,
            after,
        }
    }

    /// Returns how many micro-batches may be between forward and gradient, and between forward and
    /// the end of the backward, when another forward begins, given `room` for all of them.
    pub(super) fn in_flight(&self, room: u64) -> [usize; 2] {
        let least = self.dropped.min(self.kept - self.leaves);
        let left = room.saturating_sub(least + self.working);
        let fit = |each: u64| left.checked_div(each).map_or(usize::MAX, |n| n as usize);
        [fit(least), fit(least.min(self.after_input))]
    }
}
