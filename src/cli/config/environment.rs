//! The layer of the environment: `GPIPE_TRAIN__STEPS=5` is `train.steps`.

use std::ffi::OsString;

use super::{ConfigLayer, Entry, Origin, Schema, Value};

const PREFIX: &str = "GPIPE_";
const BETWEEN: &str = "__";

/// Reads the environment variables of keys.
///
/// # Errors
/// A variable has the prefix of keys but is none, or its value is not text.
pub(crate) fn environment<T: 'static>(
    schema: &Schema<T>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<ConfigLayer<T>, String> {
    let mut layer = ConfigLayer::new();
    for (variable, value) in variables {
        let Some(variable) = variable.to_str() else {
            continue;
        };
        let Some(name) = variable.strip_prefix(PREFIX) else {
            continue;
        };
        let Some((table, key)) = name.split_once(BETWEEN) else {
            single(schema, variable, name)?;
            continue;
        };
        let value = value.to_str();
        let value = value.ok_or_else(|| format!("{variable}: its value is not text (UTF-8)"))?;
        layer.push(Entry {
            key: format!("{table}.{key}").to_lowercase(),
            value: Value::of_text(value),
            origin: Origin::Environment(variable.to_owned()),
            read: None,
        });
    }
    layer.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(layer)
}

/// `GPIPE_TRAIN_STEPS` is an error that would go unnoticed; `GPIPE_HOME` belongs to another program.
fn single<T: 'static>(schema: &Schema<T>, variable: &str, name: &str) -> Result<(), String> {
    let name = name.to_lowercase();
    let own = schema.tables().into_iter().find_map(|table| {
        let rest = name.strip_prefix(table)?.strip_prefix('_')?;
        Some((table, rest))
    });
    match own {
        Some((table, rest)) => Err(format!(
            "{variable}: two underlines stand between table and key: did you mean {PREFIX}{}{BETWEEN}{}?",
            table.to_uppercase(),
            rest.to_uppercase()
        )),
        None => Ok(()),
    }
}
