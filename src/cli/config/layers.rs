//! All layers of a run's configuration, lowest first.

use std::path::{Path, PathBuf};

use super::environment::environment;
use super::file::file;
use super::{ConfigLayer, Entry, GivenFlag, Origin, Schema, Value};
use crate::{Failure, input};

/// The sources of configuration given on a command line.
#[derive(Debug)]
pub(crate) struct Sources<'a, T> {
    /// Path and text of the lowest layer.
    pub(crate) below: Option<(&'a Path, &'a str)>,
    /// Files, later ones on top.
    pub(crate) files: &'a [PathBuf],
    /// The arguments of `--set`.
    pub(crate) set: &'a [String],
    /// The flags themselves.
    pub(crate) flags: &'a [GivenFlag<T>],
}

/// Returns the layers of these sources and of the environment.
///
/// # Errors
/// A file cannot be read or is not TOML, a variable is not a key, a setting has no value, or a flag is
/// not text.
pub(crate) fn layers<T: 'static>(
    schema: &Schema<T>,
    sources: &Sources<'_, T>,
) -> Result<Vec<ConfigLayer<T>>, Failure> {
    let mut layers = Vec::new();
    if let Some((path, text)) = sources.below {
        layers.push(file(path, text).map_err(Failure::Usage)?);
    }
    for path in sources.files {
        let text = input::text(path).map_err(|failure| match failure {
            Failure::Usage(why) => Failure::Usage(format!("--config {why}")),
            failed @ (Failure::Run(_) | Failure::Exit(..) | Failure::Asked(_)) => failed,
        })?;
        layers.push(file(path, &text).map_err(Failure::Usage)?);
    }
    let variables = environment(schema, std::env::vars_os());
    for layer in [variables, set(sources.set), schema.flags(sources.flags)] {
        layers.push(layer.map_err(Failure::Usage)?);
    }
    Ok(layers)
}

/// Reads repeatable settings such as `train.steps=5` from the command line.
///
/// # Errors
/// A setting has no `=`.
fn set<T>(settings: &[String]) -> Result<ConfigLayer<T>, String> {
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
