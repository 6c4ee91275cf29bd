//! Reads the model of a run folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpipe_partitioner::words::quoted;
use serde_json::Value;

use super::{Failure, Trained};
use crate::config::values;
use crate::feed::DataOptions;
use crate::model::exported::{self, AskedLoss};
use crate::vocabulary::{Characters, ModelTokenizer, Vocabulary};
use crate::{failure, no_run};
use gpipe_data::{HowMany, MOBY_DICK, TextSet};
use gpipe_models::zoo::{ModelSpec, Zoo};
use gpipe_torch::Kernels;
use gpipe_train::checkpoint::Checkpoint;
use gpipe_train::{BEST, RunFolder, TrainError, lacks};

/// Checkpoint part with the characters of tokens, in order.
pub(crate) const VOCABULARY: &str = "vocabulary";
/// Checkpoint part with the model's tokenizer.json and its companions.
pub(crate) const TOKENIZER: &str = "tokenizer";
/// Checkpoint part that describes the samples: classes, columns, scales.
pub(crate) const SAMPLES: &str = "samples";
/// Word for made-up data.
const SYNTHETIC: &str = "synthetic";

/// Training data of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum TrainedOn {
    /// The built-in text.
    BuiltIn,
    /// A file.
    File(PathBuf),
    /// Made-up numbers.
    Synthetic,
    /// Not recorded.
    #[default]
    Unknown,
}

/// Settings of a model's training.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) data: TrainedOn,
    /// Separate evaluation data.
    pub(crate) eval_data: Option<PathBuf>,
    pub(crate) batch: Option<usize>,
    pub(crate) micro: Option<usize>,
    pub(crate) threads_per_stage: Option<usize>,
    pub(crate) kernels: Kernels,
    /// Options of the data, from the configuration and the checkpoint.
    pub(crate) options: DataOptions,
    /// Number of completed steps.
    pub(crate) step: Option<u64>,
}

/// Reads a run's model with the weights of its newest checkpoint.
pub(super) fn newest(run: &Path, moved: Option<&Path>, zoo: &Zoo) -> Result<Trained, Failure> {
    let folder = RunFolder::open(run).map_err(|error| match error {
        TrainError::NoRun { folder, why } => no_run("--run", &folder, why),
        error => failure(error),
    })?;
    let Some(found) = folder.newest_checkpoint().map_err(failure)? else {
        return Err(Failure::Usage(format!(
            "--run {}: the run has no checkpoint yet: `train --checkpoint-every N` writes one after \
             every N steps, and at the end of the run",
            run.display()
        )));
    };
    // The weights were trained with the checkpoint's configuration.
    let own = found.extras().config.clone();
    if !own.is_empty() {
        return trained(
            &found,
            (&own, &found.path().join("manifest.json")),
            moved,
            zoo,
        );
    }
    let config = folder.config_path();
    let text = folder.config().map_err(|error| {
        Failure::Usage(format!("{}: cannot be read: {error}", config.display()))
    })?;
    trained(&found, (&text, &config), moved, zoo)
}

/// Reads a run's model at its lowest held-out loss.
pub(super) fn best(run: &Path, moved: Option<&Path>, zoo: &Zoo) -> Result<Trained, Failure> {
    let folder = RunFolder::open(run).map_err(|error| match error {
        TrainError::NoRun { folder, why } => no_run("--run", &folder, why),
        error => failure(error),
    })?;
    let best = folder.path().join(BEST);
    if !best.exists() {
        let why = match best.read_link() {
            Ok(lost) => format!("has lost its best checkpoint, {}", lost.display()),
            Err(_) => "has no best checkpoint: `train --eval-every N` keeps the one of the lowest \
                       held-out loss"
                .to_owned(),
        };
        return Err(Failure::Usage(format!(
            "--best: the run {} {why}; leave out --best to take its newest checkpoint",
            run.display()
        )));
    }
    checkpoint(&best, moved, zoo)
}

/// Whether a path is the folder of a run.
pub(super) fn is_run(path: &Path) -> bool {
    RunFolder::open(path).is_ok()
}

/// Reads the model of one checkpoint.
pub(super) fn checkpoint(path: &Path, moved: Option<&Path>, zoo: &Zoo) -> Result<Trained, Failure> {
    if is_run(path) {
        return Err(Failure::Usage(format!(
            "--checkpoint {}: this is the folder of a run: name it with --run {}",
            path.display(),
            quoted(path)
        )));
    }
    let found = Checkpoint::open(path).map_err(failure)?;
    let config = found.extras().config.clone();
    if config.is_empty() {
        return Err(Failure::Usage(format!(
            "--checkpoint {}: it does not say which model it is of; use --run with its run folder",
            path.display()
        )));
    }
    trained(&found, (&config, path), moved, zoo)
}

/// Reads a model from its configuration `text`, found at `from`; `moved` is the new path of its
/// exported program.
fn trained(
    found: &Checkpoint,
    (text, from): (&str, &Path),
    moved: Option<&Path>,
    zoo: &Zoo,
) -> Result<Trained, Failure> {
    let (spec, settings) = read(text, moved, zoo)
        .map_err(|why| Failure::Usage(format!("{}: {why}", from.display())))?;
    let settings = Settings {
        step: Some(found.extras().step),
        options: DataOptions {
            kept: saved_samples(found),
            ..settings.options
        },
        ..settings
    };
    let vocabulary = match (saved_tokenizer(found)?, saved_vocabulary(found)?) {
        (Some(tokenizer), _) => Ok(Vocabulary::Tokenizer(tokenizer)),
        (None, Some(characters)) => {
            let characters = Characters::new(characters.chars().collect());
            Ok(Vocabulary::Characters(characters))
        }
        (None, None) if settings.options.kept.is_some() => {
            Err("it was trained on samples, not on a text".to_owned())
        }
        (None, None) => of_data(&settings.data),
    };
    Ok(Trained {
        spec,
        weights: found.weights().map_err(failure)?,
        settings,
        vocabulary,
    })
}

/// Returns the saved characters, if the run was trained on text.
pub(crate) fn saved_vocabulary(found: &Checkpoint) -> Result<Option<&str>, Failure> {
    let saved = found.extras().get(VOCABULARY);
    let text = saved.map(|saved| {
        let text = saved.as_str();
        text.ok_or_else(|| failure(lacks(found, VOCABULARY)))
    });
    text.transpose()
}

/// Returns the saved tokenizer, if the model has one.
pub(crate) fn saved_tokenizer(found: &Checkpoint) -> Result<Option<Arc<ModelTokenizer>>, Failure> {
    let Some(kept) = found.extras().get(TOKENIZER) else {
        return Ok(None);
    };
    let tokenizer = ModelTokenizer::saved(kept)
        .map_err(|why| anyhow::anyhow!("{}: its tokenizer: {why}", found.path().display()));
    Ok(Some(tokenizer?))
}

/// Returns the saved description of the samples, if the run was trained on samples.
pub(crate) fn saved_samples(found: &Checkpoint) -> Option<Value> {
    found.extras().get(SAMPLES).cloned()
}

/// Returns the characters of the training text, which must still exist.
fn of_data(data: &TrainedOn) -> Result<Vocabulary, String> {
    let set = match data {
        TrainedOn::BuiltIn => TextSet::new(MOBY_DICK),
        TrainedOn::File(path) if path.extension().is_some_and(|end| end == "bin") => {
            return Err(
                "it was trained on a file of tokens: name what they stand for with \
                        --tokenizer"
                    .to_owned(),
            );
        }
        TrainedOn::File(path) => TextSet::read(path).map_err(|error| error.to_string())?,
        TrainedOn::Synthetic => return Err("it was trained on made-up data".to_owned()),
        TrainedOn::Unknown => return Err("nothing says what it was trained on".to_owned()),
    };
    let characters = Characters::new(set.vocabulary().to_vec());
    Ok(Vocabulary::Characters(characters))
}

/// Reads the model and other settings from a run's configuration.
fn read(text: &str, moved: Option<&Path>, zoo: &Zoo) -> Result<(ModelSpec, Settings), String> {
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
    let asked = asked_loss(&config)?;
    let spec = match (moved, exported::is_exported(name)) {
        (Some(_), false) => Err(format!("--model: `{name}` is no exported program")),
        (moved, true) => exported_program(&config, asked, moved.unwrap_or(Path::new(name))),
        (None, false) => {
            let own = ["name", "weights"];
            let sizes = model.iter().filter(|(key, _)| !own.contains(&key.as_str()));
            let sizes = sizes.map(|(key, value)| format!("{key}={value}"));
            let spec = zoo.spec(name, sizes).map_err(|error| error.to_string())?;
            exported::judged(spec, asked)
        }
    }?;
    let path = table("data").and_then(|data| data.get("path"));
    let data = match path.and_then(toml::Value::as_str) {
        None => TrainedOn::BuiltIn,
        Some(SYNTHETIC) => TrainedOn::Synthetic,
        Some(path) => TrainedOn::File(PathBuf::from(path)),
    };
    let eval_data = table("eval").and_then(|own| own.get("data"));
    let eval_data = eval_data.and_then(toml::Value::as_str).map(PathBuf::from);
    let kernels = table("pipeline").and_then(|own| own.get("kernels")?.as_str());
    let settings = Settings {
        data,
        eval_data,
        batch: number("train", "batch"),
        micro: number("pipeline", "micro"),
        threads_per_stage: number("pipeline", "threads_per_stage"),
        kernels: kernels.map_or(Ok(Kernels::Libtorch), values::KERNELS.parse)?,
        options: options(&config),
        step: None,
    };
    Ok((spec, settings))
}

/// Reads the trained program, with its loss.
fn exported_program(
    config: &toml::Table,
    asked: AskedLoss,
    path: &Path,
) -> Result<ModelSpec, String> {
    let fingerprint = config.get("model").and_then(|own| own.get("fingerprint"));
    let fingerprint = fingerprint.and_then(toml::Value::as_str);
    exported::check_there(&path.display().to_string(), fingerprint)?;
    let size = |name: &str| config.get("model")?.get(name)?.as_integer();
    let context = size("context").map(|own| ("context".to_owned(), own.to_string()));
    let spec = exported::read(path, asked, &context.into_iter().collect())?;
    exported::check_same(&spec, fingerprint)?;
    Ok(spec)
}

/// Returns the loss that was requested in training.
fn asked_loss(config: &toml::Table) -> Result<AskedLoss, String> {
    let get = |key: &str| config.get("loss")?.get(key);
    let name = get("name").and_then(toml::Value::as_str);
    Ok(AskedLoss {
        kind: name.map(str::parse).transpose()?,
        ignore_index: get("ignore_index").and_then(toml::Value::as_integer),
    })
}

/// Returns the data options of a run's configuration, with defaults for missing ones.
fn options(config: &toml::Table) -> DataOptions {
    let value = |table: &str, key: &str| config.get(table)?.as_table()?.get(key);
    let text = |key: &str| Some(value("data", key)?.as_str()?.to_owned());
    let number = |table: &str, key: &str| value(table, key)?.as_integer();
    let how_many = |name: &str| {
        let number = number("data", name).and_then(|own| usize::try_from(own).ok());
        let found = text(name).and_then(|own| own.parse().ok());
        number.map(HowMany::Fixed).or(found)
    };
    let defaults = DataOptions::default();
    let share = value("data", "held_out").and_then(toml::Value::as_float);
    let whole = number("data", "held_out").map(|whole| whole as f64);
    let seed = number("train", "seed").map(|seed| seed as u64);
    DataOptions {
        target: text("target"),
        // The samples described in the checkpoint are without them.
        drop_columns: Vec::new(),
        missing: text("missing")
            .and_then(|own| own.parse().ok())
            .unwrap_or_default(),
        held_out: share.or(whole).unwrap_or(defaults.held_out),
        normalise: text("normalise")
            .and_then(|own| own.parse().ok())
            .unwrap_or_default(),
        resize: number("data", "resize").and_then(|own| usize::try_from(own).ok()),
        workers: how_many("workers"),
        prefetch: how_many("prefetch"),
        seed: seed.unwrap_or_default(),
        shuffle: (value("data", "shuffle").and_then(toml::Value::as_bool))
            .unwrap_or(defaults.shuffle),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_model_and_data() {
        let text = "[model]\nname = \"llama\"\nlayers = 2\nd_ff = 24\n[train]\nbatch = 8\n\
                    [pipeline]\nmicro = 4\nthreads_per_stage = 1\n[data]\npath = \"/a/b.txt\"\n";
        let zoo = Zoo::builtin();
        let (spec, settings) = read(text, None, &zoo).unwrap();
        assert_eq!(spec.settings().count("d_ff"), 24);
        assert_eq!((settings.batch, settings.micro), (Some(8), Some(4)));
        assert_eq!(settings.data, TrainedOn::File(PathBuf::from("/a/b.txt")));
        let (_, settings) = read("[model]\nname = \"gpt\"\n", None, &zoo).unwrap();
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
            let error = read(text, None, &zoo).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
