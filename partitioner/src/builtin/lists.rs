//! Output of a generator.

use super::Action;

/// Action lists per device, and the indices of forwards that start an overlapped pair (empty
/// without pairs).
pub(super) struct Lists {
    pub(super) devices: Vec<Vec<Action>>,
    pub(super) pairs: Vec<Vec<usize>>,
}

/// Description of the required numbers, to complete "it needs …".
pub(super) type Needs = &'static str;

/// The generator of a row of the table.
pub(super) type Generator = fn(super::Shape) -> Result<Lists, Needs>;

/// Possible output of a generator: lists for every shape, or for some shapes only; with pairs or
/// without.
pub(super) trait Generated {
    /// Converts to the common form.
    fn generated(self) -> Result<Lists, Needs>;
}

impl Generated for Vec<Vec<Action>> {
    fn generated(self) -> Result<Lists, Needs> {
        Ok(Lists {
            devices: self,
            pairs: Vec::new(),
        })
    }
}

impl Generated for Lists {
    fn generated(self) -> Result<Lists, Needs> {
        Ok(self)
    }
}

impl<T: Generated> Generated for Result<T, Needs> {
    fn generated(self) -> Result<Lists, Needs> {
        self.and_then(Generated::generated)
    }
}
