//! Diagnoses what limits training: its input, the cores used for loading, or training itself.
//!
//! 1. The loader's threads measure their work ([`ledger`]) by phase ([`phase`]): tasks as a whole, and
//!    a few sampled items in detail. The consumer measures its waiting time (`loader/watching.rs`).
//! 2. Now and then the workers pause for a step, which shows its duration without them
//!    (`loader/pace.rs`).
//! 3. The results are averaged ([`InputMeasures`]). The verdict depends on these alone ([`limit`]), and
//!    so do the remedies ([`remedy`]), by a model of a batch's time ([`model`]).

pub(super) mod clock;
pub(super) mod ledger;
mod limit;
mod measures;
mod model;
pub(super) mod phase;
mod remedy;
mod words;

use serde::{Deserialize, Serialize};

pub use limit::Limit;
pub use measures::{InputMeasures, PhaseTime};
pub use phase::Phase;
pub use remedy::{Change, Remedy};
pub use words::waiting;

/// The limit of training speed, its reason, and possible remedies.
///
/// It displays as one sentence for people.
///
/// ```
/// use gpipe::data::{Diagnosis, InputMeasures, Limit, Phase};
///
/// let mut measures = InputMeasures::default();
/// (measures.batches, measures.period_ms, measures.waited_ms) = (100, 40.0, 20.0);
/// measures.phases[Phase::Read as usize].wall_ms = 40.0; // of these on a core: none
/// let diagnosis = Diagnosis::of(&measures);
/// assert_eq!(diagnosis.limit, Limit::Io(Phase::Read));
/// assert_eq!(diagnosis.remedies[0].period_ms, 20.0); // with two workers
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The limit.
    pub limit: Limit,
    /// Possible remedies, best first.
    pub remedies: Vec<Remedy>,
    /// The measures behind the diagnosis.
    pub measures: InputMeasures,
}

impl Diagnosis {
    /// Diagnoses these measures; the result depends on nothing else.
    pub fn of(measures: &InputMeasures) -> Self {
        let limit = Limit::of(measures);
        Self {
            limit,
            remedies: remedy::remedies(measures, limit),
            measures: measures.clone(),
        }
    }
}
