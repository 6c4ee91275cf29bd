//! Differences between the saved run's configuration and the resumed run's.

use std::collections::BTreeMap;

use super::{OnResume, Schema, toml};
use crate::Failure;

type Flat = BTreeMap<String, toml::Value>;

/// Compares the checkpoint's configuration with the resumed run's; returns a note such as `train.batch
/// = 64, where the run had 32` for each change that affects losses.
///
/// # Errors
/// A key was changed that must not change.
pub(crate) fn diff<T: 'static>(
    schema: &Schema<T>,
    defaults: &T,
    saved: &str,
    now: &str,
) -> Result<Vec<String>, Failure> {
    // A key that did not exist when the run was saved had its default.
    let defaults = flat(&toml(schema, defaults))?;
    let full = |text: &str| -> Result<Flat, Failure> {
        let mut keys = defaults.clone();
        keys.extend(flat(text)?);
        Ok(keys)
    };
    let (saved, now) = (full(saved)?, full(now)?);
    let mut notes = Vec::new();
    let new = now.keys().filter(|key| !saved.contains_key(*key));
    let mut keys: Vec<&String> = saved.keys().chain(new).collect();
    // The model's name comes first: other differences of the model follow from it.
    keys.sort_by_key(|key| *key != "model.name");
    for key in keys {
        let (old, new) = (saved.get(key), now.get(key));
        if old == new || schema.on_resume(key) == OnResume::Free {
            continue;
        }
        let (old, new) = (shown(old), shown(new));
        // Probabilities, such as dropout's, are not part of the saved state.
        let is_chance = saved.get(key).is_some_and(toml::Value::is_float);
        if schema.on_resume(key) == OnResume::Fixed && !is_chance {
            return Err(fixed(key, schema.flag(key), &old, &new));
        }
        notes.push(format!("{key} = {new}, where the run had {old}"));
    }
    Ok(notes)
}

/// The error for a key, set by this flag, whose value must not change on resume.
pub(crate) fn fixed(key: &str, flag: Option<&str>, old: &str, new: &str) -> Failure {
    let flag = flag.map_or_else(String::new, |flag| format!(" ({flag})"));
    Failure::Usage(format!(
        "--resume: the run was trained with {key} = {old} and cannot go on with {new}: leave {key}{flag} as \
         it was, or begin a new run without --resume"
    ))
}

fn shown(value: Option<&toml::Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), toml::Value::to_string)
}

/// Maps `table.key` to its value.
fn flat(text: &str) -> Result<Flat, Failure> {
    let tables: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        Failure::Run(anyhow::anyhow!(
            "the configuration in the checkpoint is no TOML: {}",
            error.message()
        ))
    })?;
    let keys = tables.into_iter().flat_map(|(table, keys)| match keys {
        toml::Value::Table(keys) => keys
            .into_iter()
            .map(|(key, value)| (format!("{table}.{key}"), value))
            .collect(),
        value => vec![(table, value)],
    });
    Ok(keys.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{Recipe, schema};
    use gpipe_models::zoo::Zoo;

    const SAVED: &str = "[model]\nname = \"gpt\"\nlayers = 2\ndropout = 0.1\n[pipeline]\nmicro = 4\n\
                         devices = [\"cpu\"]\n[train]\nsteps = 4\nseed = 1\n[checkpoint]\nevery = 2\n";

    #[track_caller]
    fn with(from: &str, to: &str) -> Result<Vec<String>, Failure> {
        assert!(SAVED.contains(from));
        diff(
            &schema(&Zoo::builtin()),
            &Recipe::defaults(),
            SAVED,
            &SAVED.replace(from, to),
        )
    }

    #[test]
    fn what_changes_no_number_is_not_spoken_of() {
        for (from, to) in [
            ("[\"cpu\"]", "[\"cpu\", \"cpu\"]"),
            ("steps = 4", "steps = 400"),
            ("every = 2", "every = 7"),
            // It decides what is measured after the last step, and was said to change losses.
            ("[checkpoint]", "[data]\nheld_out_batches = 1\n[checkpoint]"),
        ] {
            assert_eq!(with(from, to).unwrap(), [""; 0]);
        }
    }

    #[test]
    fn what_changes_losses_is_said_or_refused() {
        let told = |from, to| with(from, to).unwrap().join("; ");
        assert!(
            told("micro = 4", "micro = 8").starts_with("pipeline.micro = 8, where the run had 4")
        );
        assert!(told("dropout = 0.1", "dropout = 0.0").contains("model.dropout = 0.0"));
        assert!(told("seed = 1\n", "seed = 1\nclip = 1.0\n").contains("had nothing"));
        for (from, to) in [
            ("name = \"gpt\"", "name = \"bert\""),
            ("layers = 2", "layers = 3"),
            ("seed = 1", "seed = 2"),
        ] {
            let why = with(from, to).unwrap_err().said();
            assert!(why.contains("cannot go on"), "{why}");
        }
    }
}
