//! Schedules by name.

use std::fmt;
use std::str::FromStr;

use gpipe_partitioner::words::{instead, meant};

/// The form of an [`LrSchedule`](crate::LrSchedule).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LrKind {
    /// Always the same.
    #[default]
    Constant,
    /// Down in a line.
    Linear,
    /// Down along half a cosine.
    Cosine,
    /// Up and down again.
    OneCycle,
    /// Down with the inverse square root of the step.
    InverseSqrt,
}

impl LrKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Constant,
        Self::Linear,
        Self::Cosine,
        Self::OneCycle,
        Self::InverseSqrt,
    ];

    /// The name in texts and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Linear => "linear",
            Self::Cosine => "cosine",
            Self::OneCycle => "one-cycle",
            Self::InverseSqrt => "inverse-sqrt",
        }
    }

    /// Whether it has a number of steps, and an end.
    pub fn ends(self) -> bool {
        matches!(self, Self::Linear | Self::Cosine | Self::OneCycle)
    }
}

impl fmt::Display for LrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What PyTorch calls those of the same form.
const PYTORCH: [(&str, LrKind); 4] = [
    ("ConstantLR", LrKind::Constant),
    ("LinearLR", LrKind::Linear),
    ("CosineAnnealingLR", LrKind::Cosine),
    ("OneCycleLR", LrKind::OneCycle),
];

/// By its name, or by that of PyTorch.
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
