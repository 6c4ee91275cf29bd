//! Lists a schema's keys.

use super::Schema;

/// One key of a configuration.
#[derive(Debug, Clone)]
pub struct ConfigKey {
    /// The full name, with its table, such as `train.steps`.
    pub name: String,
    /// The kind of value, such as `a number`.
    pub kind: String,
    /// Description.
    pub about: String,
    /// Id of the flag of this key: see [`clap::Arg::get_id`].
    pub flag: Option<String>,
    /// The default, as written in a file.
    pub default: Option<String>,
}

impl<T: 'static> Schema<T> {
    /// Lists all keys with their values in `defaults`.
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
