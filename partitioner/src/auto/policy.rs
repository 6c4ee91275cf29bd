//! Policies of the greedy list scheduler.

use std::collections::BTreeSet;
use std::fmt;

use crate::schedule::{ActionKind, Shape};

/// The rules by which a device chooses its next action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Whether backwards are split into halves.
    pub(super) split: bool,
    /// Whether forwards go before backwards, within the window.
    pub(super) eager: bool,
    /// Whether weight passes wait if another input is known to arrive before their end.
    pub(super) patient: bool,
    /// Most micro-batches between stage 0's forward and backward.
    pub(super) window: usize,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.split, "split"),
            (self.eager, "forwards first"),
            (self.patient, "patient"),
        ];
        for (_, word) in words.iter().filter(|(yes, _)| *yes) {
            write!(f, "{word}, ")?;
        }
        write!(f, "window {}", self.window)
    }
}

/// Above this many stages times micro-batches, only a few policies are tried.
const LARGE: usize = 20_000;

/// Above this many, only one policy is tried: the possible gain is small then.
const HUGE: usize = 500_000;

impl Policy {
    /// The policies worth a try for `shape`.
    pub(super) fn all(shape: Shape) -> Vec<Self> {
        let (p, m) = (shape.devices, shape.micro_batches);
        let large = shape.stages() * m > LARGE;
        if shape.stages() * m > HUGE {
            return vec![Self {
                split: true,
                eager: false,
                patient: false,
                window: m.min(2 * p),
            }];
        }
        let windows: BTreeSet<usize> = if large {
            [p, 2 * p].map(|window| window.min(m)).into()
        } else {
            [1, 2, p.div_ceil(2), p, p + p.div_ceil(2), 2 * p, 3 * p, m]
                .map(|w| w.clamp(1, m))
                .into()
        };
        let flags = [false, true];
        let mut policies = Vec::new();
        for window in windows {
            for (split, eager) in flags.into_iter().flat_map(|s| flags.map(|e| (s, e))) {
                policies.push(Self {
                    split,
                    eager,
                    patient: false,
                    window,
                });
                if split && !large {
                    policies.push(Self {
                        split,
                        eager,
                        patient: true,
                        window,
                    });
                }
            }
        }
        policies
    }

    /// The kind of action that makes an input gradient.
    pub(super) fn gradient(self) -> ActionKind {
        if self.split {
            ActionKind::BackwardInput
        } else {
            ActionKind::Backward
        }
    }
}
