//! An optimizer over a whole pipeline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use gpipe_partitioner::Bytes;

use super::{Groups, OptimizerKind};
use crate::error::{Error, Setting, SettingsError};

/// Updates a pipeline's parameters from their accumulated gradients.
///
/// Its state of each parameter lives beside the parameter, on the stage's own device, until the
/// optimizer is dropped and another one steps. `Optimizer::step` uses the gradients up: the next
/// step starts from none.
///
/// Parameters may be updated in different ways, by name:
///
/// ```
/// use gpipe::{Optimizer, optim::AdamW};
///
/// let base = AdamW { lr: 4e-4, weight_decay: 0.1, ..AdamW::default() };
/// let mut optimizer = Optimizer::new(base)
///     .group(|name| name.starts_with("embed."), AdamW { lr: 1e-4, ..base })
///     .group(|name| name.ends_with(".bias"), AdamW { weight_decay: 0.0, ..base });
/// assert_eq!(optimizer.group_of("embed.bias"), Some(0)); // the first that fits
/// assert_eq!(optimizer.group_of("head.weight"), None); // as `Optimizer::new` says
/// optimizer.set_lr(2e-4);
/// assert_eq!(optimizer.group_lr(0), Some(5e-5)); // groups keep their ratio
/// ```
#[derive(Debug)]
pub struct Optimizer {
    id: u64,
    /// Stages keep their optimizer state as long as this is alive.
    alive: Arc<()>,
    groups: Groups,
}

impl Optimizer {
    /// Creates an optimizer without any state yet.
    pub fn new(kind: impl Into<OptimizerKind>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Only uniqueness matters, not order.
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(()),
            groups: Groups::new(kind.into()),
        }
    }

    /// Updates parameters whose name fits by `kind` instead. Groups are numbered from 0 in the
    /// order in which they are added; a parameter belongs to the first group that it fits.
    ///
    /// The predicate is called at each step, on the stages' threads. A parameter whose kind of
    /// update changes starts anew; with other hyperparameters of the same kind it keeps its state.
    #[must_use]
    pub fn group(
        mut self,
        fits: impl Fn(&str) -> bool + Send + Sync + 'static,
        kind: impl Into<OptimizerKind>,
    ) -> Self {
        self.groups.push(Arc::new(fits), kind.into());
        self
    }

    /// Sets whether optimizer state (Adam's means, for example) stays in host memory between steps;
    /// off by default.
    ///
    /// For a GPU that memory is page-locked. At a step the state is copied in and out on side
    /// streams, a window of parameters at a time: while one window is updated, the next one's state
    /// is copied in and the previous one's out. No number changes, and checkpoints are the same. On
    /// the CPU this only makes a copy and saves nothing.
    ///
    /// A step allocates two windows before it updates anything.
    #[must_use]
    pub fn offload(mut self, offload: bool) -> Self {
        self.groups.set_offload(offload);
        self
    }

    /// Sets the bytes of parameters per window of [`Optimizer::offload`]; 64 MiB by default. A
    /// larger parameter has a window of its own. Adam's state is twice as large as its parameters,
    /// so two windows take four times as much on the device.
    #[must_use]
    pub fn offload_window(mut self, bytes: Bytes) -> Self {
        self.groups.set_window(bytes.0);
        self
    }

    /// Returns the setting of [`Optimizer::offload`].
    pub(crate) fn offloads(&self) -> bool {
        self.groups.offload()
    }

    /// Returns the group of a parameter by name; `None`: the parameter is updated as given to
    /// [`Optimizer::new`].
    pub fn group_of(&self, name: &str) -> Option<usize> {
        self.groups.of(name)
    }

    /// Returns the learning rate of the next step, for parameters without a group.
    pub fn lr(&self) -> f64 {
        self.groups.kind(None).lr()
    }

    /// Returns the learning rate of a group's next step; `None`: there is no such group.
    pub fn group_lr(&self, group: usize) -> Option<f64> {
        (group < self.groups.len()).then(|| self.groups.kind(Some(group)).lr())
    }

    /// Sets the learning rate of the next step and scales every group's by the same factor: a group
    /// added with a tenth of the default learning rate keeps a tenth. (A group added while the
    /// default was 0 has no ratio to keep, and its rate does not change.)
    pub fn set_lr(&mut self, lr: f64) {
        self.groups.set_lr(lr);
    }

    pub(crate) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the parameter groups and their updates.
    ///
    /// # Errors
    /// [`Error::Settings`] for a hyperparameter that the update is not defined for.
    pub(crate) fn groups(&self) -> Result<Groups, Error> {
        let checked = self.groups.check();
        checked.map_err(|why| SettingsError::invalid(Setting::Optimizer, why))?;
        Ok(self.groups.clone())
    }
}
