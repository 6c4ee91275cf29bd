//! What a run folder says of its model.

use std::path::{Path, PathBuf};

use super::vocabulary::Vocabulary;
use super::{Failure, Trained};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::data::{MOBY_DICK, TextSet};
use crate::files;
use crate::models::zoo::{ModelSpec, Zoo};

/// In a run folder.
const CHECKPOINTS: &str = "checkpoints";
const CONFIG: &str = "config.toml";
/// The part of a checkpoint that has the characters of tokens, in their order.
const VOCABULARY: &str = "vocabulary";
/// What stands for made-up data.
const SYNTHETIC: &str = "synthetic";

/// What a model was trained on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::cli) enum TrainedOn {
    /// The text that comes with the program.
    BuiltIn,
    /// A file.
    File(PathBuf),
    /// Numbers without a meaning.
    Synthetic,
    /// Nobody says.
    #[default]
    Unknown,
}

/// What is known of a model's training.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Settings {
    pub(in crate::cli) data: TrainedOn,
    pub(in crate::cli) batch: Option<usize>,
    pub(in crate::cli) micro: Option<usize>,
    pub(in crate::cli) threads_per_stage: Option<usize>,
    /// Steps that had been done.
    pub(in crate::cli) step: Option<u64>,
}

/// The model of a run, with the weights of its newest checkpoint.
pub(super) fn newest(run: &Path, zoo: &Zoo) -> Result<Trained, Failure> {
    let wrong = |why: String| Err(Failure::Usage(format!("--run {}: {why}", run.display())));
    if !run.exists() {
        return wrong("there is no such folder".to_owned());
    }
    if !run.is_dir() {
        return wrong("this is a file, not a run folder".to_owned());
    }
    let (config, checkpoints) = (run.join(CONFIG), run.join(CHECKPOINTS));
    if !config.exists() && !checkpoints.exists() {
        return wrong(format!(
            "this is no run folder: it has neither {CONFIG} nor {CHECKPOINTS}, which `train` writes"
        ));
    }
    let found = match Checkpoint::newest(&checkpoints) {
        Err(CheckpointError::None { .. }) => {
            return wrong(
                "the run has no checkpoint yet: `train --checkpoint-every N` writes one after every N \
                 steps, and at the end of the run"
                    .to_owned(),
            );
        }
        found => found.map_err(failed)?,
    };
    // That of the checkpoint is what its weights were trained with.
    let own = found.extras().config.clone();
    if !own.is_empty() {
        return trained(&found, &own, &found.path().join("manifest.json"), zoo);
    }
    let text = files::read_text(&config).map_err(|error| {
        Failure::Usage(format!("{}: cannot be read: {error}", config.display()))
    })?;
    trained(&found, &text, &config, zoo)
}

/// The model of one checkpoint.
pub(super) fn checkpoint(path: &Path, zoo: &Zoo) -> Result<Trained, Failure> {
    let found = Checkpoint::open(path).map_err(failed)?;
    let config = found.extras().config.clone();
    if config.is_empty() {
        return Err(Failure::Usage(format!(
            "--checkpoint {}: it does not say which model it is of; use --run with its run folder",
            path.display()
        )));
    }
    trained(&found, &config, path, zoo)
}

/// Wrong use or a failed run, as a checkpoint's error tells them apart.
pub(in crate::cli) fn failed(error: CheckpointError) -> Failure {
    if error.is_wrong_use() {
        return Failure::Usage(error.to_string());
    }
    Failure::Run(error.into())
}

/// `text` is the configuration, `from` where it stands.
fn trained(found: &Checkpoint, text: &str, from: &Path, zoo: &Zoo) -> Result<Trained, Failure> {
    let (spec, settings) =
        read(text, zoo).map_err(|why| Failure::Usage(format!("{}: {why}", from.display())))?;
    let settings = Settings {
        step: Some(found.extras().step),
        ..settings
    };
    let vocabulary = match saved_vocabulary(found)? {
        Some(characters) => Ok(Vocabulary::new(characters.chars().collect())),
        None => of_data(&settings.data),
    };
    Trained {
        spec,
        weights: found.weights().map_err(failed)?,
        settings,
        vocabulary,
    }
    .checked()
}

/// The characters that a checkpoint has kept, if it was a text that was trained on.
pub(in crate::cli) fn saved_vocabulary(found: &Checkpoint) -> Result<Option<&str>, Failure> {
    let saved = found.extras().get(VOCABULARY);
    let text = saved.map(|saved| saved.as_str().ok_or_else(|| unfit(found, VOCABULARY)));
    text.transpose()
}

/// The error about a part of a checkpoint that `train` has not written.
pub(in crate::cli) fn unfit(found: &Checkpoint, part: &str) -> Failure {
    Failure::Run(anyhow::anyhow!(
        "{}: the part `{part}` is missing or not what `train` writes: use another checkpoint",
        found.path().join("manifest.json").display()
    ))
}

/// The characters of the text that was trained on, which is still to be there.
fn of_data(data: &TrainedOn) -> Result<Vocabulary, String> {
    let set = match data {
        TrainedOn::BuiltIn => TextSet::new(MOBY_DICK),
        TrainedOn::File(path) if path.extension().is_some_and(|end| end == "bin") => {
            return Err("it was trained on a file of tokens".to_owned());
        }
        TrainedOn::File(path) => TextSet::read(path).map_err(|error| error.to_string())?,
        TrainedOn::Synthetic => return Err("it was trained on made-up data".to_owned()),
        TrainedOn::Unknown => return Err("nothing says what it was trained on".to_owned()),
    };
    Ok(Vocabulary::new(set.vocabulary().to_vec()))
}

/// The model and the rest of what matters here, from a run's configuration.
fn read(text: &str, zoo: &Zoo) -> Result<(ModelSpec, Settings), String> {
    let config: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| format!("is no TOML: {}", error.message()))?;
    let table = |name: &str| config.get(name).and_then(toml::Value::as_table);
    let number = |table_name: &str, key: &str| {
        let value = table(table_name)?.get(key)?.as_integer()?;
        usize::try_from(value).ok().filter(|&value| value > 0)
    };
    let model = table("model").ok_or("has no table `model`")?;
    let name = model.get("name").and_then(toml::Value::as_str);
    let name = name.ok_or("has no `model.name`")?;
    let own = ["name", "weights"];
    let sizes = model.iter().filter(|(key, _)| !own.contains(&key.as_str()));
    let sizes = sizes.map(|(key, value)| format!("{key}={value}"));
    let spec = zoo.spec(name, sizes).map_err(|error| error.to_string())?;
    let path = table("data").and_then(|data| data.get("path"));
    let data = match path.and_then(toml::Value::as_str) {
        None => TrainedOn::BuiltIn,
        Some(SYNTHETIC) => TrainedOn::Synthetic,
        Some(path) => TrainedOn::File(PathBuf::from(path)),
    };
    let settings = Settings {
        data,
        batch: number("train", "batch"),
        micro: number("pipeline", "micro"),
        threads_per_stage: number("pipeline", "threads_per_stage"),
        step: None,
    };
    Ok((spec, settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_model_and_data() {
        let text = "[model]\nname = \"llama\"\nlayers = 2\nd_ff = 24\n[train]\nbatch = 8\n\
                    [pipeline]\nmicro = 4\nthreads_per_stage = 1\n[data]\npath = \"/a/b.txt\"\n";
        let zoo = Zoo::builtin();
        let (spec, settings) = read(text, &zoo).unwrap();
        assert_eq!(spec.settings().count("d_ff"), 24);
        assert_eq!((settings.batch, settings.micro), (Some(8), Some(4)));
        assert_eq!(settings.data, TrainedOn::File(PathBuf::from("/a/b.txt")));
        let (_, settings) = read("[model]\nname = \"gpt\"\n", &zoo).unwrap();
        assert_eq!(settings.data, TrainedOn::BuiltIn);
        for (text, wanted) in [
            ("[model", "is no TOML"),
            ("x = 1", "has no table `model`"),
            ("[model]\nlayers = 2", "has no `model.name`"),
            ("[model]\nname = \"gtp\"", "did you mean `gpt`?"),
            (
                "[model]\nname = \"gpt\"\nlayer = 2",
                "did you mean `layers`?",
            ),
            (
                "[model]\nname = \"gpt\"\nlayers = \"x\"",
                "must be a number",
            ),
        ] {
            let error = read(text, &zoo).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
