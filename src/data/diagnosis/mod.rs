//! What holds a training back: its input, the cores that loading takes from it, or itself.
//!
//! 1. The loader's threads count what they do ([`ledger`]), phase by phase ([`phase`]): a task as a
//!    whole, and of a few of its items how they share it. Whoever takes batches counts how long
//!    these are waited for (`loader/watching.rs`).
//! 2. Now and then the workers pause for a step, which shows what it takes without them
//!    (`loader/pace.rs`).
//! 3. All of it together is a handful of means ([`InputMeasures`]). The verdict is a function of
//!    them and of nothing else ([`limit`]), and so is what would help ([`remedy`]), by a
//!    model of what a batch takes ([`model`]).

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

/// What holds a training back, why, and what would help.
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
    /// What holds it back.
    pub limit: Limit,
    /// What would help, the best first.
    pub remedies: Vec<Remedy>,
    /// What this was concluded from.
    pub measures: InputMeasures,
}

impl Diagnosis {
    /// The verdict on these measures: the same for the same.
    pub fn of(measures: &InputMeasures) -> Self {
        let limit = Limit::of(measures);
        Self {
            limit,
            remedies: remedy::remedies(measures, limit),
            measures: measures.clone(),
        }
    }
}
