//! Common error type of this crate.

use crate::builtin::ScheduleError;
use crate::check::CheckError;
use crate::schedule::CsvError;
use crate::value_error::ValueError;

/// Any error about values and schedules.
///
/// No function of this crate returns it: a caller's `?` converts other errors into it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number or text that is not a valid value.
    #[error(transparent)]
    Value(#[from] ValueError),
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
