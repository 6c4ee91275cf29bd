//! The keys of a run's configuration, a file a few tables, and how a run comes by its
//! recipe.

mod model;
#[cfg(test)]
mod page;
mod pipeline;
mod training;
mod updates;

use std::path::{Path, PathBuf};

use super::Failure;
use super::options::Args;
use super::recipe::Recipe;
use crate::cli::config::{self, ConfigLayer, Origin, Origins, Schema, Value};
use crate::models::zoo::{Zoo, ZooError};

/// What a plan decides.
const PLANNED: [&str; 5] = [
    "pipeline.micro",
    "pipeline.schedule",
    "pipeline.chunks",
    "pipeline.recompute",
    "pipeline.balance",
];

/// What a run was configured with.
#[derive(Debug)]
pub(super) struct Saved {
    /// Where it stands.
    pub(super) path: PathBuf,
    /// As TOML.
    pub(super) text: String,
    /// Whether its weights come from a checkpoint.
    pub(super) trained: bool,
}

/// All keys, table by table.
pub(super) fn schema(zoo: &Zoo) -> Schema<Recipe> {
    let tables = [
        model::keys(zoo),
        pipeline::keys(zoo),
        training::train(),
        updates::optimizer(),
        updates::rate(),
        training::data(),
        training::checkpoint(),
        training::metrics(),
    ];
    Schema::new(tables.into_iter().flatten().collect())
}

/// Puts together what files, the environment, `--set` and flags say, and where each
/// value is from; all of it goes on top of what is `below`, the configuration of a run
/// that goes on.
pub(super) fn recipe(
    args: &Args,
    zoo: &Zoo,
    below: Option<&Saved>,
) -> Result<(Recipe, Origins), Failure> {
    let schema = schema(zoo);
    let below = below.map(|saved| config::file(&saved.path, &saved.text));
    let below = below.transpose().map_err(Failure::Usage)?;
    let mut layers: Vec<ConfigLayer> = below.into_iter().collect();
    for path in &args.config {
        layers.push(file(path)?);
    }
    let variables = std::env::vars_os();
    layers.push(config::environment(&schema, variables).map_err(Failure::Usage)?);
    layers.push(config::set(&args.set).map_err(Failure::Usage)?);
    layers.push(schema.flags(&args.given).map_err(Failure::Usage)?);
    let mut defaults = Recipe {
        goes_on: args.resume.is_some(),
        ..Recipe::defaults()?
    };
    if let Some(own) = zoo.first_own() {
        own.clone_into(&mut defaults.model);
    }
    let (recipe, origins) = config::resolve(&schema, defaults, &layers).map_err(Failure::Usage)?;
    check_plan(&origins).map_err(Failure::Usage)?;
    check_sizes(zoo, &recipe, &origins).map_err(Failure::Usage)?;
    let update = &recipe.update;
    let name = update.optimizer.to_string();
    check_numbers(&updates::NUMBERS, ("optimizer", &name), &origins).map_err(Failure::Usage)?;
    let name = update.lr_schedule.name();
    check_numbers(&updates::COURSE, ("schedule", name), &origins).map_err(Failure::Usage)?;
    Ok((recipe, origins))
}

fn file(path: &Path) -> Result<ConfigLayer, Failure> {
    let text = crate::cli::input::text(path).map_err(|failure| match failure {
        Failure::Usage(why) => Failure::Usage(format!("--config {why}")),
        failed @ Failure::Run(_) => failed,
    })?;
    config::file(path, &text).map_err(Failure::Usage)
}

/// A plan decides what it decides: nothing beside it or above it does.
fn check_plan(origins: &Origins) -> Result<(), String> {
    let (Some(plan), Some(layer)) = (origins.of("pipeline.plan"), origins.layer("pipeline.plan"))
    else {
        return Ok(());
    };
    let also = |key: &&str| origins.layer(key).is_some_and(|own| own >= layer);
    match PLANNED.into_iter().find(also) {
        Some(key) => Err(format!(
            "{}: the plan ({plan}) decides {key} already: leave one of them out",
            origins.of(key).map_or_else(String::new, Origin::to_string)
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

/// A number that the optimizer or the schedule does not have would do nothing.
fn check_numbers(
    keys: &[(&str, &[&str])],
    (what, name): (&str, &str),
    origins: &Origins,
) -> Result<(), String> {
    let stray =
        |(key, having): &&(&str, &[&str])| origins.of(key).is_some() && !having.contains(&name);
    match keys.iter().find(stray) {
        Some((key, having)) => Err(format!(
            "{}: the {what} `{name}` has no {key}; it is for {}",
            origins.of(key).map_or_else(String::new, Origin::to_string),
            having.join(", ")
        )),
        None => Ok(()),
    }
}

fn put<T>(slot: &mut T, value: Result<T, String>) -> Result<(), String> {
    *slot = value?;
    Ok(())
}

fn path(path: &Path) -> Value {
    Value::Text(path.to_string_lossy().into_owned())
}
