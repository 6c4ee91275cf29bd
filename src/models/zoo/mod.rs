//! Models by name: for command lines, profiles and benchmarks.
//!
//! A [`Zoo`] holds [`Entry`]s; each has its sizes with their defaults, presets of sizes, and a
//! constructor of an [`Instance`]: the model as a [`Sequential`](gpipe_torch::Sequential), a
//! description of its inputs and targets, and its loss function. [`Zoo::spec`] resolves a name and
//! `key=value` settings to a [`ModelSpec`]:
//!
//! ```
//! use gpipe::models::zoo::Zoo;
//! use gpipe::{Pipeline, tch::Device};
//!
//! let spec = Zoo::builtin().spec("mlp", ["hidden=64", "depth=3"])?;
//! let mut pipe = Pipeline::new(spec.build(), &[Device::Cpu, Device::Cpu], 4)?;
//! let (input, target) = spec.sample(8, 0)?;
//! let report = pipe.train_step(input, target, spec.loss())?;
//! assert!(report.read()?.loss.is_finite());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builtin;
mod entry;
mod error;
mod exported;
mod flops;
mod loss;
mod settings;
mod spec;

pub use crate::synthetic::{Fill, Synthetic};
pub use entry::{Entry, Instance, Preset};
pub use error::ZooError;
pub use loss::{SharedLoss, binary_cross_entropy, class_cross_entropy, token_cross_entropy};
pub use settings::{Settings, Size};
pub use spec::ModelSpec;

use std::sync::Arc;

/// A collection of named models.
#[derive(Debug, Clone, Default)]
pub struct Zoo {
    entries: Vec<Arc<Entry>>,
}

impl Zoo {
    /// Makes an empty zoo.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a zoo of the built-in models.
    pub fn builtin() -> Self {
        let mut zoo = Self::new();
        for entry in builtin::entries() {
            zoo.entries.push(Arc::new(entry));
        }
        zoo
    }

    /// Adds a model.
    ///
    /// # Errors
    /// [`ZooError::Taken`]: its name, or that of a preset, already exists. [`ZooError::SizeName`]: a
    /// size has a name that cannot become a flag, or a duplicate name.
    pub fn add(&mut self, entry: Entry) -> Result<(), ZooError> {
        let mut names: Vec<&str> = self.names().collect();
        for name in entry.names() {
            if names.contains(&name) {
                return Err(ZooError::Taken {
                    name: name.to_owned(),
                });
            }
            names.push(name);
        }
        entry.check_size_names()?;
        self.entries.push(Arc::new(entry));
        Ok(())
    }

    /// Returns the models, in the order of adding.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter().map(Arc::as_ref)
    }

    /// Returns all names that [`Zoo::spec`] knows: each entry's, followed by its presets'.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().flat_map(|entry| entry.names())
    }

    /// Returns the first model that is not built in: the default model of a custom program.
    pub fn first_own(&self) -> Option<&str> {
        let builtin = Self::builtin();
        let own = |name: &&str| !builtin.names().any(|builtin| builtin == *name);
        self.names().find(own)
    }

    /// Returns a model by the name of an entry (default sizes) or of a preset, with settings
    /// `key=value` applied.
    ///
    /// # Errors
    /// [`ZooError`]: there is no such model or size (a similar one is suggested), a value is out of
    /// range, or sizes conflict.
    pub fn spec<I>(&self, name: &str, settings: I) -> Result<ModelSpec, ZooError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.names().any(|own| own == name));
        let Some(entry) = entry else {
            return Err(ZooError::unknown_model(name, self.names()));
        };
        ModelSpec::new(Arc::clone(entry), name, settings)
    }
}
