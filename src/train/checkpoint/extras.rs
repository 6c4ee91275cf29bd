//! What goes into a checkpoint beside tensors.

use std::collections::BTreeMap;

use serde_json::Value;

/// What the rest of a program needs to go on: how far it is, with what settings,
/// and whatever its parts want kept.
///
/// ```
/// use gpipe::checkpoint::Extras;
///
/// let extras = Extras::new(100)
///     .config("[train]\nsteps = 500\n")
///     .part("data", serde_json::json!({"epoch": 1, "sample": 320}));
/// assert_eq!(extras.get("data").and_then(|data| data["sample"].as_u64()), Some(320));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Extras {
    /// Steps that the run has done: what the checkpoint's folder is named after.
    pub step: u64,
    /// The settings of the run as TOML; empty where there are none.
    pub config: String,
    /// What parts of the program want kept, by their names.
    pub parts: BTreeMap<String, Value>,
}

impl Extras {
    /// For a run that has done `step` steps.
    pub fn new(step: u64) -> Self {
        Self {
            step,
            ..Self::default()
        }
    }

    /// With the run's settings.
    #[must_use]
    pub fn config(mut self, toml: impl Into<String>) -> Self {
        self.config = toml.into();
        self
    }

    /// With what one part of the program wants kept.
    #[must_use]
    pub fn part(mut self, name: impl Into<String>, state: impl Into<Value>) -> Self {
        self.parts.insert(name.into(), state.into());
        self
    }

    /// What a part wanted kept.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.parts.get(name)
    }
}
