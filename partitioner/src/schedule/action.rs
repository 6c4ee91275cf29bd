//! Actions of a device.

use crate::ids::{MicroId, StageId};
use crate::value_error::ValueError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The kind of an action, with the letter that the literature and PyTorch's
/// schedule CSV use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[doc(alias = "computation type")]
pub enum ActionKind {
    /// `F`: the stage's layers run.
    Forward,
    /// `B`: gradients of the inputs and of the weights, jointly.
    Backward,
    /// `I`: the input half of the backward (dgrad); the stage before waits for its result.
    #[doc(alias = "dgrad")]
    BackwardInput,
    /// `W`: the weight half of the backward (wgrad); no other stage waits for it.
    #[doc(alias = "wgrad")]
    BackwardWeight,
    /// `R`: recompute of the forward, for the backward's inputs.
    #[doc(alias = "activation checkpointing")]
    Recompute,
}

impl ActionKind {
    /// All kinds, in the order of a micro-batch's life.
    pub const ALL: [Self; 5] = [
        Self::Forward,
        Self::Recompute,
        Self::Backward,
        Self::BackwardInput,
        Self::BackwardWeight,
    ];

    /// The kind's letter: F, B, I, W or R.
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::BackwardInput => 'I',
            Self::BackwardWeight => 'W',
            Self::Recompute => 'R',
        }
    }

    /// The kind with that letter.
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.letter() == letter)
    }

    /// Whether the action makes the gradient of the stage's inputs (B, I).
    pub const fn gives_input_gradient(self) -> bool {
        matches!(self, Self::Backward | Self::BackwardInput)
    }

    /// Whether the action reads the activations that the micro-batch's forward left on the stage
    /// (R, B, I).
    pub const fn consumes_activations(self) -> bool {
        matches!(self, Self::Recompute | Self::Backward | Self::BackwardInput)
    }

    /// Whether the action adds to the gradients of the weights, and so is the last one of its
    /// micro-batch on the stage (B, W).
    pub const fn accumulates(self) -> bool {
        matches!(self, Self::Backward | Self::BackwardWeight)
    }
}

/// One unit of work of a device: a kind of action of one stage on one micro-batch.
///
/// Written and read as `{stage}{letter}{micro}`:
/// ```
/// use gpipe_partitioner::{Action, ActionKind, MicroId, StageId};
/// let action: Action = "2F0".parse()?;
/// assert_eq!(action, Action { stage: StageId(2), kind: ActionKind::Forward, micro: MicroId(0) });
/// assert_eq!(action.to_string(), "2F0");
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// The stage whose layers run.
    pub stage: StageId,
    /// The kind of work.
    pub kind: ActionKind,
    /// The micro-batch that it works on.
    pub micro: MicroId,
}

impl Action {
    /// The action of `kind` of stage number `stage` on micro-batch number `micro`.
    pub const fn new(stage: usize, kind: ActionKind, micro: usize) -> Self {
        Self {
            stage: StageId(stage),
            kind,
            micro: MicroId(micro),
        }
    }

    /// Same stage and micro-batch, with another kind.
    #[must_use]
    pub const fn with(self, kind: ActionKind) -> Self {
        Self { kind, ..self }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.kind.letter(), self.micro)
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Action {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse(text).ok_or_else(|| ValueError::Parse {
            text: text.chars().take(40).collect(),
            expected: "an action such as 2F0 (stage, one of F B I W R, micro-batch)",
        })
    }
}

fn parse(text: &str) -> Option<Action> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let letter = text[at..].chars().next()?;
    let micro = &text[at + letter.len_utf8()..];
    // `usize::from_str` would accept a sign.
    if !micro.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Action {
        stage: StageId(text[..at].parse().ok()?),
        kind: ActionKind::from_letter(letter)?,
        micro: MicroId(micro.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_round_trips_through_its_letter() {
        for kind in ActionKind::ALL {
            let action = Action::new(12, kind, 345);
            assert_eq!(action.to_string().parse::<Action>().unwrap(), action);
            assert_eq!(ActionKind::from_letter(kind.letter()), Some(kind));
        }
    }

    #[test]
    fn what_is_no_action_is_refused() {
        for bad in [
            "",
            "F",
            "2F",
            "F0",
            "2X0",
            "2F0 ",
            "2F+1",
            "-2F0",
            "2É0",
            "99999999999999999999F0",
        ] {
            assert!(bad.parse::<Action>().is_err(), "{bad}");
        }
    }
}
