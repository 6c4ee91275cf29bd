//! Processes that do not begin a step at the same time.

use crate::units::Micros;

/// How a device's process comes into a step ([`Machine::joins`](crate::Machine::joins)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joins {
    /// Which process it is.
    pub process: usize,
    /// How much later than the first process it begins.
    pub after: Micros,
}
