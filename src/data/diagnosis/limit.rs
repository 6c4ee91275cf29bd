//! Finds the slowest part.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::measures::{InputMeasures, share};
use super::model::Model;
use super::phase::Phase;

/// The limit of training speed, as far as its input is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Limit {
    /// Training waits for batches, and the loader's threads wait for data in this phase: for a disk, a
    /// network or a lock.
    Io(Phase),
    /// Training waits for batches, and the loader's threads compute in this phase.
    Cpu(Phase),
    /// Training hardly waits, but is slowed down by the cores that the loader uses, mostly in this
    /// phase.
    Contended(Phase),
    /// Training waits for batches that would be in time if all took equally long.
    Uneven,
    /// Training itself: faster input would not help.
    Compute,
}

/// Smaller losses than this share of the time are negligible.
const LOST: f64 = 0.07;
/// Cores are the bottleneck if contention lengthens a step by more than this share of the waiting time.
const SHORT: f64 = 0.5;
/// A loader that is busy for less than this share of the time is fast enough.
const BUSY: f64 = 0.8;

impl Limit {
    /// Finds the limit from these measures.
    pub fn of(measures: &InputMeasures) -> Self {
        let (waited, contended) = (measures.waited_ms, measures.contended_ms());
        if share(waited + contended, measures.period_ms) < LOST {
            return Self::Compute;
        }
        // If both are lost, cores are short: more workers would take more of them.
        if contended > SHORT * waited {
            return Self::Contended(most(|phase| measures.of(phase).cpu_ms));
        }
        let model = Model::of(measures);
        let (workers, copy) = (measures.worker_wall_ms(), measures.of(Phase::Copy).wall_ms);
        let workers = workers / measures.workers.max(1) as f64;
        if workers.max(copy) < BUSY * measures.period_ms {
            return Self::Uneven;
        }
        let takes = |phase: Phase| model.work[phase as usize] + model.idle[phase as usize];
        let slowest = if copy > workers {
            Phase::Copy
        } else {
            most(|phase| match phase {
                Phase::Copy => 0.0,
                phase => takes(phase),
            })
        };
        if model.idle[slowest as usize] > model.work[slowest as usize] {
            Self::Io(slowest)
        } else {
            Self::Cpu(slowest)
        }
    }

    /// Returns the phase of the limit.
    pub fn phase(self) -> Option<Phase> {
        match self {
            Self::Io(phase) | Self::Cpu(phase) | Self::Contended(phase) => Some(phase),
            Self::Uneven | Self::Compute => None,
        }
    }

    /// Whether training waits for its input.
    pub fn is_input(self) -> bool {
        matches!(self, Self::Io(_) | Self::Cpu(_) | Self::Uneven)
    }

    /// Returns a number for plots: 0 is not input-bound, 1 uneven, 2 contended, 3 CPU-bound, 4
    /// I/O-bound.
    pub fn number(self) -> u8 {
        match self {
            Self::Compute => 0,
            Self::Uneven => 1,
            Self::Contended(_) => 2,
            Self::Cpu(_) => 3,
            Self::Io(_) => 4,
        }
    }
}

/// Returns the phase with the largest value.
fn most(of: impl Fn(Phase) -> f64) -> Phase {
    let first = |a: Phase, b: Phase| if of(b) > of(a) { b } else { a };
    Phase::ALL.into_iter().fold(Phase::Read, first)
}

/// `I/O-bound in read`, `contended in map`, `not input-bound`
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(phase) => write!(f, "I/O-bound in {phase}"),
            Self::Cpu(phase) => write!(f, "CPU-bound in {phase}"),
            Self::Contended(phase) => write!(f, "contended in {phase}"),
            Self::Uneven => write!(f, "uneven"),
            Self::Compute => write!(f, "not input-bound"),
        }
    }
}

impl From<Limit> for String {
    fn from(limit: Limit) -> Self {
        limit.to_string()
    }
}

/// The name of [`Limit::Compute`] in metrics of older runs, which can still be resumed.
const FORMERLY: &str = "compute-bound";

impl TryFrom<String> for Limit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let phases = Phase::ALL.into_iter();
        let with = phases.flat_map(|own| [Self::Io(own), Self::Cpu(own), Self::Contended(own)]);
        let mut all = with.chain([Self::Uneven, Self::Compute]);
        let found = all.find(|limit| limit.to_string() == text);
        let found = found.or((text == FORMERLY).then_some(Self::Compute));
        found.ok_or_else(|| format!("`{text}` is no limit of an input pipeline"))
    }
}
