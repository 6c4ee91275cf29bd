//! Causes of the difference between a run and its prediction.

use super::{Delta, Makespans};
use std::fmt;

/// Cause of a difference between a run and its prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Actions took longer than predicted, apart from warm-up.
    SlowStage,
    /// The first actions of a kind on a stage took longer than its median, each no longer than the
    /// one before.
    WarmUp,
    /// The two actions of an overlapped pair ran one after the other: the first need not wait for
    /// the inputs of the second, and its output left sooner.
    Pairs,
    /// Transfers between stages took longer than predicted: over a link, or from thread to thread.
    Link,
    /// The rest: the delay of starts after the device was free and all inputs had arrived.
    Engine,
}

impl Cause {
    /// All causes, in the order in which they are attributed.
    pub const ALL: [Self; 5] = [
        Self::SlowStage,
        Self::WarmUp,
        Self::Pairs,
        Self::Link,
        Self::Engine,
    ];

    /// Short name of the cause.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowStage => "slow stage",
            Self::WarmUp => "warm-up",
            Self::Pairs => "pairs run apart",
            Self::Link => "hand-over",
            Self::Engine => "engine",
        }
    }

    /// Meaning of the cause, for readers of a table.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::SlowStage => "actions took longer (below zero: shorter) than predicted",
            Self::WarmUp => "the first actions of a kind took longer than their median",
            Self::Pairs => "overlapped pairs ran one after the other",
            Self::Link => "values took longer from stage to stage than predicted",
            Self::Engine => "device and inputs were ready, the action did not start yet",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Cost of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The cause.
    pub cause: Cause,
    /// Part of the step's difference due to the cause.
    pub delta: Delta,
}

/// Returns each cause with the difference between two consecutive replays; `pairs` means that the
/// schedule has overlapped pairs.
pub(super) fn differences(makespans: &Makespans, pairs: bool) -> Vec<Difference> {
    let of = |cause| match cause {
        Cause::SlowStage => (makespans.predicted, makespans.warm),
        Cause::WarmUp => (makespans.warm, makespans.cold),
        Cause::Pairs => (makespans.cold, makespans.apart),
        Cause::Link => (makespans.apart, makespans.transferred),
        Cause::Engine => (makespans.transferred, makespans.measured),
    };
    Cause::ALL
        .into_iter()
        .filter(|&cause| pairs || cause != Cause::Pairs)
        .map(|cause| {
            let (from, to) = of(cause);
            let delta = Delta::between(from, to);
            Difference { cause, delta }
        })
        .collect()
}

/// Returns the cause that contributes most in the direction of `whole`.
pub(super) fn largest(differences: &[Difference], whole: Delta) -> Difference {
    let weight = |difference: &&Difference| {
        let nanos = difference.delta.nanos();
        match whole.nanos().signum() {
            0 => nanos.saturating_abs(),
            sign => nanos.saturating_mul(sign),
        }
    };
    // The first among equals.
    let largest = differences.iter().rev().max_by_key(weight);
    largest.copied().unwrap_or(Difference {
        cause: Cause::Engine,
        delta: Delta::ZERO,
    })
}
