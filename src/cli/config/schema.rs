//! All keys of a configuration.

use std::ffi::OsString;

use super::{ConfigLayer, Entry, Key, Origin, Value};
use crate::models::zoo::nearest;

/// The keys, in the order in which the resolved configuration has them.
#[derive(Debug)]
pub(in crate::cli) struct Schema<T> {
    pub(super) keys: Vec<Key<T>>,
}

impl<T: 'static> Schema<T> {
    pub(in crate::cli) fn new(keys: Vec<Key<T>>) -> Self {
        Self { keys }
    }

    /// The tables, each once.
    pub(super) fn tables(&self) -> Vec<&str> {
        let mut tables: Vec<&str> = Vec::new();
        for key in &self.keys {
            if !tables.contains(&key.table()) {
                tables.push(key.table());
            }
        }
        tables
    }

    pub(super) fn get(&self, name: &str) -> Option<&Key<T>> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The key of an entry; nothing for a table without a key in it.
    ///
    /// # Errors
    /// There is none of this name: where it stands, and what was meant.
    pub(super) fn key(&self, entry: &Entry) -> Result<Option<&Key<T>>, String> {
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
        let own_names: Vec<String> = keys.map(|key| key.own().to_owned()).collect();
        if own_names.is_empty() {
            return self.no_table_of(table, name);
        }
        format!(
            "there is no key `{name}`: did you mean `{}`? [{table}] has {}",
            self.elsewhere(own).map_or_else(
                || format!("{table}.{}", nearest(own, &own_names)),
                str::to_owned
            ),
            own_names.join(", ")
        )
    }

    /// A name without a table, which is to have a value.
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
        let tables = self.tables().into_iter().map(str::to_owned);
        let own = self.keys.iter().map(|key| key.own().to_owned());
        match self.elsewhere(&nearest(name, &tables.chain(own).collect::<Vec<_>>())) {
            Some(key) => format!("there is no key `{name}`: did you mean `{key}`?"),
            None => self.no_table(name),
        }
    }

    fn no_table(&self, table: &str) -> String {
        let tables: Vec<String> = self.tables().into_iter().map(str::to_owned).collect();
        format!(
            "there is no table `{table}`: did you mean `{}`? There are {}",
            nearest(table, &tables),
            tables.join(", ")
        )
    }

    /// The key's own name may be right, and is then looked for in all tables.
    fn no_table_of(&self, table: &str, name: &str) -> String {
        let own = name.rsplit('.').next().unwrap_or_default();
        let keys = |like: &dyn Fn(&Key<T>) -> bool| -> Vec<String> {
            let keys = self.keys.iter().filter(|key| like(key));
            keys.map(|key| key.name.clone()).collect()
        };
        let mut meant = keys(&|key| key.own() == own);
        if meant.is_empty() {
            meant = keys(&|_| true);
        }
        format!(
            "there is no table `{table}`: did you mean `{}`? There are {}",
            nearest(name, &meant),
            self.tables().join(", ")
        )
    }

    /// A key that has the right name in another table.
    fn elsewhere(&self, own: &str) -> Option<&str> {
        let key = self.keys.iter().find(|key| key.own() == own)?;
        Some(&key.name)
    }

    /// The flags that were given as a layer: pairs of clap's name and the text.
    ///
    /// # Errors
    /// It is no text: a configuration cannot say it.
    pub(in crate::cli) fn flags(
        &self,
        given: &[(String, OsString)],
    ) -> Result<ConfigLayer, String> {
        let entry = |key: &Key<T>| {
            let flag = key.flag.as_ref()?;
            let (_, text) = given.iter().find(|(id, _)| *id == flag.id)?;
            let Some(text) = text.to_str() else {
                let text = text.display();
                return Some(Err(format!(
                    "{}: {text} is not UTF-8, and cannot stand in a configuration as {}: rename \
                     the file",
                    flag.written, key.name
                )));
            };
            Some(Ok(Entry {
                key: key.name.clone(),
                value: Value::Plain(text.to_owned()),
                origin: Origin::Flag(flag.written.clone()),
            }))
        };
        self.keys.iter().filter_map(entry).collect()
    }
}
