//! How a run comes by its recipe: from files, the environment, `--set` and flags.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::Failure;
use super::config::schema;
use super::options::Args;
use super::recipe::{PLANNED, Recipe};
use crate::config::{Origin, Origins, Sources, fixed, layers, resolve};
use crate::trained::ModelTokenizer;
use gpipe_models::zoo::{Zoo, ZooError};

/// What a run was configured with.
#[derive(Debug)]
pub(super) struct Saved {
    /// Where it stands.
    pub(super) path: PathBuf,
    /// As TOML.
    pub(super) text: String,
    /// Whether its weights come from a checkpoint.
    pub(super) trained: bool,
    /// The tokenizer that its checkpoint has.
    pub(super) tokenizer: Option<Arc<ModelTokenizer>>,
    /// What its checkpoint has kept of its samples.
    pub(super) samples: Option<Value>,
}

/// Puts together what files, the environment, `--set` and flags say, and where each
/// value is from; all of it goes on top of what is `below`, the configuration of a run
/// that goes on.
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

/// That a run goes on with its own model, before its data is looked at as another one's. Exported
/// programs may have been moved: whether they are the same is known when they are read.
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

/// A plan decides what it decides: nothing beside it or above it does.
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

/// Sizes that flags give are told in words of flags, where the model is made.
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
