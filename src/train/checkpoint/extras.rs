//! Contents of a checkpoint other than tensors.

use std::collections::BTreeMap;

use serde_json::Value;

/// State that a program needs to resume: the step, the configuration, and the states of its parts.
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
    /// Completed steps, which also name the checkpoint's folder.
    pub step: u64,
    /// The run's configuration as TOML, or empty.
    pub config: String,
    /// States of parts of the program, by name.
    pub parts: BTreeMap<String, Value>,
}

impl Extras {
    /// Makes extras of a run after `step` steps.
    pub fn new(step: u64) -> Self {
        Self {
            step,
            ..Self::default()
        }
    }

    /// Sets the configuration.
    #[must_use]
    pub fn config(mut self, toml: impl Into<String>) -> Self {
        self.config = toml.into();
        self
    }

    /// Adds the state of a part.
    #[must_use]
    pub fn part(mut self, name: impl Into<String>, state: impl Into<Value>) -> Self {
        self.parts.insert(name.into(), state.into());
        self
    }

    /// Returns the state of a part.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.parts.get(name)
    }
}
