//! The same layers in one stage that has all the cores.

use super::{LayerProfile, Profile};
use crate::json::ReadError;

/// What the layers cost where one stage computes with all the cores that the devices share.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AllCores {
    pub(super) threads: usize,
    pub(super) layers: Vec<LayerProfile>,
}

impl Profile {
    /// The same with what the layers cost in one stage of `threads` intra-op threads, for plans to
    /// compare a pipeline of CPU devices with: where there are few micro-batches, it cannot win.
    ///
    /// # Errors
    /// As of [`Profile::new`], and if these are not the same layers or if there is no thread.
    pub fn with_all_cores(
        mut self,
        threads: usize,
        layers: Vec<LayerProfile>,
    ) -> Result<Self, ReadError> {
        self.all_cores = Some(AllCores { threads, layers });
        self.checked("profile")
    }

    /// The intra-op threads of the one stage, where that was measured, too.
    pub fn all_cores(&self) -> Option<usize> {
        self.all_cores.as_ref().map(|own| own.threads)
    }

    /// The profile of the one stage, where that was measured, too.
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
