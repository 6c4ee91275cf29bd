//! What can be told of a measurement while it goes on.

use std::fmt;

/// How far a measurement is.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ProfileProgress {
    /// These layers, counted from 0, are built and about to be measured together.
    Layers {
        /// The first.
        from: usize,
        /// Behind the last.
        to: usize,
        /// Those of the model.
        of: usize,
    },
    /// Their first runs at two of the sizes are over.
    FirstRuns {
        /// About how many seconds those at all others take.
        left: f64,
    },
    /// Their first run at every size is over.
    WarmedUp,
    /// So many rounds of measurements of them are over.
    Round {
        /// Rounds by now.
        rounds: usize,
        /// Half of the 95 % interval of the least certain size's time, as a share of it.
        sure_to: f64,
    },
}

/// Who is told.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a>(pub(super) &'a (dyn Fn(ProfileProgress) + Sync));

impl Watch<'_> {
    pub(super) fn tell(self, progress: ProfileProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
