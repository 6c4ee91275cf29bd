//! What a generator gives.

use super::Action;

/// The action lists per device, and the places of forwards that start an overlapped pair
/// (empty without any).
pub(super) struct Lists {
    pub(super) devices: Vec<Vec<Action>>,
    pub(super) pairs: Vec<Vec<usize>>,
}

/// Which numbers a generator needs, to complete "it needs …".
pub(super) type Needs = &'static str;

/// The generator of a row of the table.
pub(super) type Generator = fn(super::Shape) -> Result<Lists, Needs>;

/// What a generator may return: lists for every shape, or lists for some of them; with pairs
/// or without.
pub(super) trait Generated {
    /// The same in one form.
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
