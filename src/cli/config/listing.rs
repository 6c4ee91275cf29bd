//! A schema's keys, for whoever lists them.

use super::Schema;

/// One key.
#[derive(Debug)]
pub(in crate::cli) struct Listed {
    /// With its table.
    pub(in crate::cli) name: String,
    pub(in crate::cli) kind: String,
    /// What it is.
    pub(in crate::cli) about: String,
    /// Where clap keeps the flag that says the same.
    pub(in crate::cli) flag: Option<String>,
    /// As it would stand in a file.
    pub(in crate::cli) default: Option<String>,
}

impl<T: 'static> Schema<T> {
    /// All keys, with what they are in `defaults`.
    pub(in crate::cli) fn listed(&self, defaults: &T) -> Vec<Listed> {
        let keys = self.keys.iter().map(|key| Listed {
            name: key.name.clone(),
            kind: key.kind.to_string(),
            about: key.about.clone(),
            flag: key.flag.as_ref().map(|flag| flag.id.clone()),
            default: (key.get)(defaults).map(|value| value.to_string()),
        });
        keys.collect()
    }
}
