//! Activation checkpointing: activations that are recomputed instead of kept.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use gpipe_partitioner::MicroId;

/// Activations that are recomputed before the backward instead of being kept since the forward
/// (activation checkpointing; Chen et al. 2016, and section 2.3 of GPipe, Huang et al. 2019).
///
/// It trades time for memory and never changes a number: a recomputed forward has the same random
/// masks, starts with the same contents of the layers' buffers as the first one, and its changes to
/// them do not count. Buffers that change are saved for each micro-batch between the two.
#[doc(alias = "activation checkpointing")]
#[doc(alias = "gradient checkpointing")]
#[doc(alias = "rematerialization")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recompute {
    /// Everything is kept: no recomputation.
    #[default]
    Never,
    /// Every stage keeps only its inputs, but for the last micro-batch, whose
    /// backward comes soonest under GPipe's schedule: m − 1 recomputations a stage.
    ExceptLast,
    /// Every stage keeps only its inputs: m recomputations a stage.
    Always,
    /// Each stage for itself, as a plan says; one entry a stage.
    Stages(Vec<bool>),
    /// Each layer for itself; one entry a layer. A layer that recomputes keeps only
    /// its inputs.
    Layers(Vec<bool>),
}

impl Recompute {
    /// Each stage for itself, in one word where there is one.
    pub fn of_stages(stages: &[bool]) -> Self {
        match (stages.contains(&true), stages.contains(&false)) {
            (false, _) => Self::Never,
            (_, false) => Self::Always,
            _ => Self::Stages(stages.to_vec()),
        }
    }

    /// Returns the same in a named form, if there is one.
    pub(crate) fn in_a_word(self) -> Self {
        match self {
            Self::Stages(stages) => Self::of_stages(&stages),
            own => own,
        }
    }

    /// Returns whether a stage of these layers has any that recompute.
    pub(crate) fn touches(&self, stage: usize, layers: &Range<usize>) -> bool {
        match self {
            Self::Never => false,
            Self::ExceptLast | Self::Always => true,
            Self::Stages(stages) => stages.get(stage) == Some(&true),
            Self::Layers(flags) => layers.clone().any(|layer| flags.get(layer) == Some(&true)),
        }
    }

    /// Returns whether anything is recomputed for this micro-batch of `micro_batches`.
    pub(crate) fn applies(&self, micro: MicroId, micro_batches: usize) -> bool {
        !(*self == Self::ExceptLast && micro.index() + 1 == micro_batches)
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Never => "never",
            Self::ExceptLast => "except-last",
            Self::Always => "always",
            Self::Stages(_) => "per stage",
            Self::Layers(_) => "per layer",
        })
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "except-last" => Ok(Self::ExceptLast),
            "always" => Ok(Self::Always),
            _ => Err("must be one of never, except-last, always".to_owned()),
        }
    }
}
