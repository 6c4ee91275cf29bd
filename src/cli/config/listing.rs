//! A schema's keys, for whoever lists them.

use super::Schema;

/// One key of a configuration.
#[derive(Debug, Clone)]
pub struct ConfigKey {
    /// With its table, such as `train.steps`.
    pub name: String,
    /// What values it takes, such as `a number`.
    pub kind: String,
    /// What it is.
    pub about: String,
    /// The flag that says the same, as [`clap::Arg::get_id`] has it.
    pub flag: Option<String>,
    /// The default, as it would stand in a file.
    pub default: Option<String>,
}

impl<T: 'static> Schema<T> {
    /// All keys, with what they are in `defaults`.
    pub(crate) fn listed(&self, defaults: &T) -> Vec<ConfigKey> {
        let keys = self.keys.iter().map(|key| ConfigKey {
            name: key.name.clone(),
            kind: key.kind.to_string(),
            about: key.about.clone(),
            flag: key.flag.as_ref().map(|flag| flag.id.clone()),
            default: (key.get)(defaults)
                .or_else(|| key.hidden_default.clone())
                .filter(|_| !key.by_case)
                .map(|value| value.to_string()),
        });
        keys.collect()
    }
}
