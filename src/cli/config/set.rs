//! The layer of `--set`.

use super::{ConfigLayer, Entry, Origin, Value};

/// Reads repeatable settings such as `train.steps=5` from the command line.
///
/// # Errors
/// A setting has no `=`.
pub(crate) fn set<T>(settings: &[String]) -> Result<ConfigLayer<T>, String> {
    let entry = |setting: &String| {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(format!(
                "--set {setting}: write a key and its value, such as `train.steps=5`"
            ));
        };
        Ok(Entry {
            key: key.trim().to_owned(),
            value: Value::of_text(value.trim()),
            origin: Origin::Set(setting.clone()),
            read: None,
        })
    };
    settings.iter().map(entry).collect()
}
