//! Writes a configuration to a file.

use std::fmt::Write as _;

use super::{Key, Schema};

/// Formats all keys with values as TOML, which is itself a layer.
pub(crate) fn toml<T: 'static>(schema: &Schema<T>, config: &T) -> String {
    let mut text = String::new();
    for (table, keys) in by_table(schema, config) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n[{table}]\n");
        for (key, value) in keys {
            let _ = writeln!(text, "{} = {value}", key.own());
        }
    }
    text
}

type Table<'a, T> = (&'a str, Vec<(&'a Key<T>, super::Value)>);

fn by_table<'a, T: 'static>(schema: &'a Schema<T>, config: &T) -> Vec<Table<'a, T>> {
    let tables = schema.tables().into_iter().map(|table| {
        let keys = schema.keys.iter().filter(|key| key.table() == table);
        let values = keys.filter_map(|key| Some((key, (key.get)(config)?)));
        (table, values.collect::<Vec<_>>())
    });
    tables.filter(|(_, keys)| !keys.is_empty()).collect()
}
