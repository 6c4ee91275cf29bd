//! Costs of the same layers in one stage with all cores.

use super::{LayerProfile, Profile};
use crate::json::ReadError;

/// Costs of the layers if one stage uses all the cores that the devices share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AllCores {
    pub(super) threads: usize,
    pub(super) layers: Vec<LayerProfile>,
}

impl Profile {
    /// Sets the costs of the layers in one stage of `threads` intra-op threads, for plans to
    /// compare a pipeline of CPU devices with: with few micro-batches, a pipeline cannot win.
    ///
    /// # Errors
    /// Those of [`Profile::new`], and if these are not the same layers or if `threads` is 0.
    pub fn with_all_cores(
        mut self,
        threads: usize,
        layers: Vec<LayerProfile>,
    ) -> Result<Self, ReadError> {
        self.all_cores = Some(AllCores { threads, layers });
        self.checked("profile")
    }

    /// The intra-op threads of the one stage, if it was measured.
    pub fn all_cores(&self) -> Option<usize> {
        self.all_cores.as_ref().map(|own| own.threads)
    }

    /// The profile of the one stage, if it was measured.
    pub fn on_all_cores(&self) -> Option<Self> {
        let AllCores { threads, layers } = self.all_cores.clone()?;
        let how = format!("{threads} threads in one stage");
        Some(Self {
            layers,
            measured: Some(how),
            all_cores: None,
            ..self.clone()
        })
    }
}
