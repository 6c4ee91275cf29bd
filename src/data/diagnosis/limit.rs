//! Which of the parts is the slowest.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::measures::{InputMeasures, share};
use super::model::Model;
use super::phase::Phase;

/// What holds a training back, as far as its input is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Limit {
    /// The training waits for batches, and the loader's threads wait for data in this phase: for a
    /// disk, a network, a lock.
    Io(Phase),
    /// The training waits for batches, and the loader's threads are at work in this phase.
    Cpu(Phase),
    /// The training hardly waits, but is slower for the cores that the loader takes, most of
    /// them in this phase.
    Contended(Phase),
    /// The training waits for batches that would come in time if all took equally long.
    Uneven,
    /// The training itself: nothing about its input would make it faster.
    Compute,
}

/// Less than this share of the time is not worth a word.
const LOST: f64 = 0.07;
/// Cores are short where a step is longer for want of them by more than this share of what is
/// waited for.
const SHORT: f64 = 0.5;
/// A loader that is at work for less than this share of the time is fast enough.
const BUSY: f64 = 0.8;

impl Limit {
    /// What these measures say.
    pub fn of(measures: &InputMeasures) -> Self {
        let (waited, contended) = (measures.waited_ms, measures.contended_ms());
        if share(waited + contended, measures.period_ms) < LOST {
            return Self::Compute;
        }
        // Where both are lost, it is the cores that are short: more workers would take more of them.
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

    /// The phase that it is about.
    pub fn phase(self) -> Option<Phase> {
        match self {
            Self::Io(phase) | Self::Cpu(phase) | Self::Contended(phase) => Some(phase),
            Self::Uneven | Self::Compute => None,
        }
    }

    /// Whether the training waits for its input.
    pub fn is_input(self) -> bool {
        matches!(self, Self::Io(_) | Self::Cpu(_) | Self::Uneven)
    }

    /// A number for each kind, for curves: 0 is not input-bound, 1 uneven, 2 contended, 3 CPU-bound
    /// and 4 I/O-bound.
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

/// The phase of which there is most.
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

/// What [`Limit::Compute`] was called in the metrics of runs that are still there to be resumed.
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
