//! What can go wrong in this crate.

use crate::check::CheckError;
use crate::schedule::{CsvError, ScheduleError};

/// Any error of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A time that is negative, NaN or infinite.
    #[error("{value} is not a time: it must be finite and not negative")]
    NotATime {
        /// What was given, in microseconds.
        value: f64,
    },
    /// A text that does not have the form asked for.
    #[error("`{text}` is not {expected}")]
    Parse {
        /// What was given.
        text: String,
        /// What would have been understood, with examples.
        expected: &'static str,
    },
    /// A schedule that cannot be generated.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A schedule that is not legal.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A CSV that is not a schedule.
    #[error(transparent)]
    Csv(#[from] CsvError),
}
