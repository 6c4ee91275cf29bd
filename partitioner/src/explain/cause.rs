//! The causes by which a run differs from its prediction.

use super::{Delta, Makespans};
use std::fmt;

/// Why a run differs from its prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Actions took longer than the prediction's costs say, warming up apart.
    SlowStage,
    /// The first actions of their kind on a stage took longer than its median, each
    /// no longer than the one before.
    WarmUp,
    /// The two actions of an overlapped pair ran one after the other: the first
    /// needs not wait for what the second needs, and what it made left sooner.
    Pairs,
    /// Values were on their way from stage to stage for longer than predicted: over a link, or from
    /// thread to thread.
    Link,
    /// The rest: between the moment at which actions could have started, their
    /// device being free and what they need being there, and their start.
    Engine,
}

impl Cause {
    /// All causes, in the order in which they are taken.
    pub const ALL: [Self; 5] = [
        Self::SlowStage,
        Self::WarmUp,
        Self::Pairs,
        Self::Link,
        Self::Engine,
    ];

    /// The cause in a word or three.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowStage => "slow stage",
            Self::WarmUp => "warm-up",
            Self::Pairs => "pairs run apart",
            Self::Link => "hand-over",
            Self::Engine => "engine",
        }
    }

    /// What the cause is, for a table's reader.
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

/// What a cause costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The cause.
    pub cause: Cause,
    /// By how much the step is longer for it.
    pub delta: Delta,
}

/// Each cause with the step from one replay to the next; `pairs` says whether the
/// schedule has any.
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

/// The one that weighs most towards `whole`.
pub(super) fn largest(differences: &[Difference], whole: Delta) -> Difference {
    let weight = |difference: &&Difference| {
        let nanos = difference.delta.nanos();
        match whole.nanos().signum() {
            0 => nanos.saturating_abs(),
            sign => nanos.saturating_mul(sign),
        }
    };
    // Of equals the first.
    let largest = differences.iter().rev().max_by_key(weight);
    largest.copied().unwrap_or(Difference {
        cause: Cause::Engine,
        delta: Delta::ZERO,
    })
}
