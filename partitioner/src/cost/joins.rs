//! Processes that begin a step at different times.

use crate::units::Micros;

/// Start of a device's process in a step ([`Machine::joins`](crate::Machine::joins)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joins {
    /// Number of the process.
    pub process: usize,
    /// Delay of its start behind the first process.
    pub after: Micros,
}
