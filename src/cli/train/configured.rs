//! Resolves a run's recipe from files, the environment, `--set` and flags.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::Failure;
use super::config::schema;
use super::options::Args;
use super::recipe::{PLANNED, Recipe};
use crate::config::{Origin, Origins, Sources, fixed, layers, resolve};
use crate::vocabulary::ModelTokenizer;
use gpipe_models::zoo::{Zoo, ZooError};

/// The saved configuration of a run.
#[derive(Debug)]
pub(super) struct Saved {
    /// Path of the configuration.
    pub(super) path: PathBuf,
    /// The configuration as TOML.
    pub(super) text: String,
    /// Whether the weights come from a checkpoint.
    pub(super) trained: bool,
    /// Tokenizer in the checkpoint.
    pub(super) tokenizer: Option<Arc<ModelTokenizer>>,
    /// Description of the samples in the checkpoint.
    pub(super) samples: Option<Value>,
}

/// Merges files, the environment, `--set` and flags on top of `below`, the configuration of a resumed
/// run; returns the recipe and the origin of each value.
pub(super) fn recipe(
    args: &Args,
    zoo: &Zoo,
    below: Option<&Saved>,
    processes: usize,
) -> Result<(Recipe, Origins), Failure> {
    let schema = schema(zoo);
    let sources = Sources {
        below: below.map(|saved| (saved.path.as_path(), saved.text.as_str())),
        files: &args.config,
        set: &args.set,
        flags: &args.recipe.given,
    };
    let layers = layers(&schema, &sources)?;
    let mut defaults = Recipe {
        resuming: args.resume.is_some(),
        processes,
        ..Recipe::defaults()
    };
    if let Some(own) = zoo.first_own() {
        own.clone_into(&mut defaults.model);
    }
    let (recipe, origins) = resolve(&schema, defaults, &layers).map_err(Failure::Usage)?;
    if let Some(saved) = below.filter(|own| own.trained) {
        check_model(saved, &recipe)?;
    }
    check_plan(&origins).map_err(Failure::Usage)?;
    check_sizes(zoo, &recipe, &origins).map_err(Failure::Usage)?;
    schema
        .check_only_for(&recipe, &origins)
        .map_err(Failure::Usage)?;
    Ok((recipe, origins))
}

/// Checks that a resumed run keeps its model, before the data is read. Exported programs may have
/// moved: their identity is checked when they are read.
fn check_model(saved: &Saved, recipe: &Recipe) -> Result<(), Failure> {
    let before = saved.text.parse::<toml::Table>().ok();
    let before = before
        .as_ref()
        .and_then(|own| own.get("model")?.get("name"));
    let before = before.and_then(toml::Value::as_str);
    let is_file = |name: &str| Path::new(name).extension().is_some();
    match before {
        Some(before) if before != recipe.model && !is_file(before) => Err(fixed(
            "model.name",
            Some("--model"),
            &format!("{before:?}"),
            &format!("{:?}", recipe.model),
        )),
        _ => Ok(()),
    }
}

/// Rejects settings beside or above a plan that the plan decides.
fn check_plan(origins: &Origins) -> Result<(), String> {
    let (Some(plan), Some(layer)) = (origins.of("pipeline.plan"), origins.layer("pipeline.plan"))
    else {
        return Ok(());
    };
    let keys = PLANNED.map(|own| format!("pipeline.{own}")).into_iter();
    let mut keys = keys.chain(["parallel.replicas".to_owned()]);
    let also = |key: &String| origins.layer(key).is_some_and(|own| own >= layer);
    match keys.find(also) {
        Some(key) => Err(format!(
            "{}: the plan ({plan}) decides {key} already: leave one of them out",
            origins.of(&key).map_or_else(String::new, Origin::to_string)
        )),
        None => Ok(()),
    }
}

/// Checks sizes here, except those from flags, which are reported in terms of flags where the model is
/// made.
fn check_sizes(zoo: &Zoo, recipe: &Recipe, origins: &Origins) -> Result<(), String> {
    for (size, value) in &recipe.sizes {
        let key = format!("model.{size}");
        let Some(origin) = origins.of(&key) else {
            continue;
        };
        if matches!(origin, Origin::Flag(_)) {
            continue;
        }
        let alone = zoo.spec(&recipe.model, [format!("{size}={value}")]);
        if let Err(error @ (ZooError::UnknownSize { .. } | ZooError::BadValue { .. })) = alone {
            return Err(format!("{origin}: {error}"));
        }
    }
    Ok(())
}
