//! Kinds of learning-rate schedules, and their names.

use std::fmt;
use std::str::FromStr;

use gpipe_partitioner::words::{instead, meant};

/// The form of an [`LrSchedule`](crate::LrSchedule).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LrKind {
    /// Constant rate.
    #[default]
    Constant,
    /// Linear decay.
    Linear,
    /// Cosine decay over half a period.
    Cosine,
    /// Rise, then decay.
    OneCycle,
    /// Decay with the inverse square root of the step.
    InverseSqrt,
}

impl LrKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Constant,
        Self::Linear,
        Self::Cosine,
        Self::OneCycle,
        Self::InverseSqrt,
    ];

    /// Returns the name in texts and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Linear => "linear",
            Self::Cosine => "cosine",
            Self::OneCycle => "one-cycle",
            Self::InverseSqrt => "inverse-sqrt",
        }
    }

    /// Returns whether the kind has a number of steps, and an end.
    pub fn ends(self) -> bool {
        matches!(self, Self::Linear | Self::Cosine | Self::OneCycle)
    }
}

impl fmt::Display for LrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// PyTorch's names of the same schedules.
const PYTORCH: [(&str, LrKind); 4] = [
    ("ConstantLR", LrKind::Constant),
    ("LinearLR", LrKind::Linear),
    ("CosineAnnealingLR", LrKind::Cosine),
    ("OneCycleLR", LrKind::OneCycle),
];

/// Parses the name, or PyTorch's name.
impl FromStr for LrKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |kind: &Self| {
            let pytorch = PYTORCH.iter().find(|(_, own)| own == kind);
            kind.name() == text || pytorch.is_some_and(|(name, _)| *name == text)
        };
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            let choices = format!("there are {}", names.join(", "));
            let more = instead(meant(text, names), &choices);
            format!("`{text}` is no learning-rate schedule{more}")
        })
    }
}
