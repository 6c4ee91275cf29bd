//! A configuration as a file, and in a few lines.

use std::fmt::Write as _;

use super::{Key, Schema};
use crate::decide::output;

/// All keys that have a value, as TOML that is itself a layer.
pub(in crate::cli) fn toml<T: 'static>(schema: &Schema<T>, config: &T) -> String {
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

/// What is not as in `usual`, a paragraph for each table, in lines of at most `columns`:
/// `train     steps=400 batch=32 seed=0`.
pub(in crate::cli) fn lines<T: 'static>(
    schema: &Schema<T>,
    (config, usual): (&T, &T),
    columns: usize,
) -> Vec<String> {
    let width = schema.tables().iter().map(|table| table.len()).max();
    let width = width.unwrap_or_default();
    let hanging = format!("\n{:width$}  ", "");
    let line = |(table, keys): (&str, Vec<(&Key<T>, super::Value)>)| {
        let keys = keys.iter();
        let keys = keys.map(|(key, value)| format!("{}={}", key.own(), value.short()));
        let keys = keys.collect::<Vec<_>>().join(" ");
        let keys = output::wrapped(&keys, columns.saturating_sub(width + 2));
        format!("{table:<width$}  {}", keys.replace('\n', &hanging))
    };
    let mut tables = by_table(schema, config);
    for (_, keys) in &mut tables {
        keys.retain(|(key, value)| (key.get)(usual).as_ref() != Some(value));
    }
    tables.retain(|(_, keys)| !keys.is_empty());
    tables.into_iter().map(line).collect()
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
