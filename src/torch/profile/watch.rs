//! Progress of a measurement.

use std::fmt;

/// Progress of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProfileProgress {
    /// These layers, counted from 0, are built and about to be measured together.
    Layers {
        /// First layer.
        from: usize,
        /// One past the last layer.
        to: usize,
        /// Number of layers of the model.
        of: usize,
    },
    /// The first runs at two of the sizes are over.
    FirstRuns {
        /// Estimated seconds for those at all other sizes.
        left: f64,
    },
    /// The first run at every size is over.
    WarmedUp,
    /// Some rounds of measurements are over.
    Round {
        /// Number of rounds so far.
        rounds: usize,
        /// Half of the 95 % interval of the least certain size's time, as a share of it.
        sure_to: f64,
    },
}

/// Receiver of progress.
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
