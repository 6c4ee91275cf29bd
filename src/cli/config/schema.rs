//! All keys of a configuration, as a list and as a file.

use std::fmt::Write as _;

use gpipe_partitioner::words::{instead, meant, nearest};

use super::{Entry, Key, OnResume, Origins, Value};
use gpipe_torch::{PipelineBuilder, Setting};

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

/// The keys, in the order of the resolved configuration.
#[derive(Debug)]
pub(crate) struct Schema<T> {
    pub(super) keys: Vec<Key<T>>,
}

impl<T: 'static> Schema<T> {
    pub(crate) fn new(keys: Vec<Key<T>>) -> Self {
        Self { keys }
    }

    /// The tables, without duplicates.
    pub(super) fn tables(&self) -> Vec<&str> {
        let mut tables: Vec<&str> = Vec::new();
        for key in &self.keys {
            if !tables.contains(&key.table()) {
                tables.push(key.table());
            }
        }
        tables
    }

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

    /// Applies all pipeline settings of the configuration to the builder.
    pub(crate) fn apply(&self, builder: PipelineBuilder, config: &T) -> PipelineBuilder {
        let all = self.keys.iter().filter_map(|key| key.sets.as_ref());
        all.fold(builder, |builder, sets| (sets.apply)(builder, config))
    }

    /// Returns the flag of a pipeline setting, as written on a command line.
    pub(crate) fn flag_of(&self, setting: Setting) -> Option<&str> {
        let sets = |key: &&Key<T>| key.sets.as_ref().is_some_and(|own| own.setting == setting);
        let key = self.keys.iter().find(sets)?;
        Some(&key.flag.as_ref()?.written)
    }

    /// Returns the flag of a key, as written on a command line.
    pub(crate) fn flag(&self, name: &str) -> Option<&str> {
        Some(&self.get(name)?.flag.as_ref()?.written)
    }

    /// Returns how a changed value affects a resumed run.
    pub(crate) fn on_resume(&self, name: &str) -> OnResume {
        self.get(name).map_or(OnResume::Noted, |key| key.on_resume)
    }

    /// Rejects given keys that have no effect with the values of other keys.
    ///
    /// # Errors
    /// The origin of the first such key, and the values that it is for.
    pub(crate) fn check_only_for(&self, config: &T, origins: &Origins) -> Result<(), String> {
        for key in &self.keys {
            let (Some(only), Some(origin)) = (key.only_for, origins.of(&key.name)) else {
                continue;
            };
            let other = self.get(only.key);
            let Some(Value::Text(name)) = other.and_then(|other| (other.get)(config)) else {
                continue;
            };
            if !only.values.contains(&name.as_str()) {
                // `optimizer` of `optimizer.name`, `schedule` of `lr.schedule`.
                let what = only.key.trim_end_matches(".name");
                let what = what.rsplit('.').next().unwrap_or_default();
                return Err(format!(
                    "{origin}: the {what} `{name}` has no {}; it is for {}",
                    key.name,
                    only.values.join(", ")
                ));
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Key<T>> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Returns the key of an entry, or `None` for a table without a key in it.
    ///
    /// # Errors
    /// No such key exists; the error says where it was given and suggests a similar one.
    pub(super) fn key(&self, entry: &Entry<T>) -> Result<Option<&Key<T>>, String> {
        if let Some(key) = self.get(&entry.key) {
            return Ok(Some(key));
        }
        let is_table = self.tables().contains(&entry.key.as_str());
        if is_table && entry.value == Value::Table {
            return Ok(None);
        }
        let what = match &entry.value {
            Value::Table if !entry.key.contains('.') => self.no_table(&entry.key),
            _ => self.unknown(&entry.key),
        };
        Err(format!("{}: {what}", entry.origin))
    }

    fn unknown(&self, name: &str) -> String {
        let Some((table, own)) = name.split_once('.') else {
            return self.alone(name);
        };
        let keys = self.keys.iter().filter(|key| key.table() == table);
        let own_names: Vec<&str> = keys.map(Key::own).collect();
        if own_names.is_empty() {
            return self.no_table_of(table, name);
        }
        let near = match self.elsewhere(own) {
            Some(key) => Some(key.to_owned()),
            None => meant(own, own_names.iter().copied()).map(|near| format!("{table}.{near}")),
        };
        let choices = format!("[{table}] has {}", own_names.join(", "));
        format!(
            "there is no key `{name}`{}",
            instead(near.as_deref(), &choices)
        )
    }

    /// Explains a name without a table that was given a value.
    fn alone(&self, name: &str) -> String {
        if self.tables().contains(&name) {
            return format!(
                "`{name}` is a table of keys: give one of them, as in `{name}.{}`",
                {
                    let mut keys = self.keys.iter().filter(|key| key.table() == name);
                    keys.next().map_or("", |key| key.own())
                }
            );
        }
        if let Some(key) = self.elsewhere(name) {
            return format!("`{name}` stands in no table: did you mean `{key}`?");
        }
        let names = self.tables().into_iter();
        let names = names.chain(self.keys.iter().map(Key::own));
        match meant(name, names).and_then(|near| self.elsewhere(near)) {
            Some(key) => format!("there is no key `{name}`: did you mean `{key}`?"),
            None => self.no_table(name),
        }
    }

    fn no_table(&self, table: &str) -> String {
        let near = meant(table, self.tables());
        self.tables_instead(table, near)
    }

    /// Explains an unknown table; the key's own name is looked up in all tables.
    fn no_table_of(&self, table: &str, name: &str) -> String {
        let own = name.rsplit('.').next().unwrap_or_default();
        let all = || self.keys.iter();
        let same = all().filter(|key| key.own() == own);
        let near = nearest(name, same.map(|key| key.name.as_str()));
        let near = near.or_else(|| meant(name, all().map(|key| key.name.as_str())));
        self.tables_instead(table, near)
    }

    fn tables_instead(&self, table: &str, near: Option<&str>) -> String {
        let choices = format!("there are {}", self.tables().join(", "));
        format!("there is no table `{table}`{}", instead(near, &choices))
    }

    /// Finds a key of this name in another table.
    fn elsewhere(&self, own: &str) -> Option<&str> {
        let key = self.keys.iter().find(|key| key.own() == own)?;
        Some(&key.name)
    }
}

/// Formats all keys with values as TOML, which is itself a layer.
pub(crate) fn toml<T: 'static>(schema: &Schema<T>, config: &T) -> String {
    let mut text = String::new();
    for table in schema.tables() {
        let keys = schema.keys.iter().filter(|key| key.table() == table);
        let values = keys.filter_map(|key| Some((key.own(), (key.get)(config)?)));
        let mut values = values.peekable();
        if values.peek().is_some() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n[{table}]\n");
        }
        for (key, value) in values {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    text
}
