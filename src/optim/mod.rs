//! Optimizers over a whole pipeline, and their learning rates.

mod schedule;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use gpipe_partitioner::Bytes;

use crate::error::{Error, Setting, SettingsError};
use crate::torch::{Groups, OptimizerKind};

pub use schedule::{LrKind, LrSchedule};

/// Updates a pipeline's parameters from their accumulated gradients.
///
/// What it remembers of each parameter lives beside the parameter, on the
/// stage's own device, until the optimizer is dropped and another one steps.
/// `Optimizer::step` uses the gradients up: the next step
/// starts from none.
///
/// Parameters may be updated in different ways, by name:
///
/// ```
/// use gpipe::{AdamW, Optimizer};
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
    /// As long as somebody has it, stages keep what they remember for it.
    alive: Arc<()>,
    groups: Groups,
}

impl Optimizer {
    /// An optimizer that remembers nothing yet.
    pub fn new(kind: impl Into<OptimizerKind>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Only uniqueness matters, not order.
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(()),
            groups: Groups::new(kind.into()),
        }
    }

    /// Has parameters whose name fits updated by `kind` instead. Groups are
    /// numbered from 0 in the order they are added, and a parameter belongs to the
    /// first that it fits.
    ///
    /// The predicate is asked at each step, on the stages' threads. A parameter
    /// whose kind of update changes starts anew; with other numbers for the same
    /// kind it goes on with what is remembered of it.
    #[must_use]
    pub fn group(
        mut self,
        fits: impl Fn(&str) -> bool + Send + Sync + 'static,
        kind: impl Into<OptimizerKind>,
    ) -> Self {
        self.groups.push(Arc::new(fits), kind.into());
        self
    }

    /// Whether what is remembered of parameters (Adam's means, say) is in the host's
    /// memory between steps; not, unless this is called.
    ///
    /// On a GPU it is in page-locked memory then. At a step it comes and goes on side
    /// streams, a window of parameters at a time: while one window is updated, the next
    /// one's comes, and that of the one before leaves. No number changes, and checkpoints
    /// are the same. On the CPU it is a copy, and saves nothing.
    ///
    /// A step takes the memory of two windows before it updates anything.
    #[must_use]
    pub fn offload(mut self, offload: bool) -> Self {
        self.groups.set_offload(offload);
        self
    }

    /// Bytes of the parameters whose turn it is at a time with [`Optimizer::offload`]; 64 MiB,
    /// unless this is called. A parameter that is larger has a window of its own. Adam
    /// remembers twice the bytes, so two windows take four times as much on the device.
    #[must_use]
    pub fn offload_window(mut self, bytes: Bytes) -> Self {
        self.groups.set_window(bytes.0);
        self
    }

    /// As [`Optimizer::offload`] was told.
    pub(crate) fn offloads(&self) -> bool {
        self.groups.offload()
    }

    /// The group that a parameter of this name belongs to; `None`: it is updated
    /// as [`Optimizer::new`] was told.
    pub fn group_of(&self, name: &str) -> Option<usize> {
        self.groups.of(name)
    }

    /// Learning rate of the next step, for parameters that belong to no group.
    pub fn lr(&self) -> f64 {
        self.groups.kind(None).lr()
    }

    /// Learning rate of a group's next step; `None`: there is no such group.
    pub fn group_lr(&self, group: usize) -> Option<f64> {
        (group < self.groups.len()).then(|| self.groups.kind(Some(group)).lr())
    }

    /// Sets the learning rate of the next step, as a schedule does that multiplies
    /// every group's by the same factor: a group that was added with a tenth of
    /// the default learning rate keeps a tenth. (A group that was added while the
    /// default was 0 has no ratio to keep, and stays at its own.)
    pub fn set_lr(&mut self, lr: f64) {
        self.groups.set_lr(lr);
    }

    pub(crate) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The same with this learning rate, if there is one.
    ///
    /// # Errors
    /// Those of [`Optimizer::groups`].
    pub(crate) fn groups_at(&self, lr: Option<f64>) -> Result<Groups, Error> {
        let mut groups = self.groups.clone();
        if let Some(lr) = lr {
            groups.set_lr(lr);
        }
        let checked = groups.check();
        checked.map_err(|why| SettingsError::invalid(Setting::Optimizer, why))?;
        Ok(groups)
    }

    /// Which parameters are updated how.
    ///
    /// # Errors
    /// [`Error::Settings`] for a number that an update is not defined for.
    pub(crate) fn groups(&self) -> Result<Groups, Error> {
        let checked = self.groups.check();
        checked.map_err(|why| SettingsError::invalid(Setting::Optimizer, why))?;
        Ok(self.groups.clone())
    }
}
