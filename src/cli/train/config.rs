//! The keys of a run's configuration, and how a run comes by its recipe.

use std::path::PathBuf;

use super::Failure;
use super::options::Args;
use super::recipe::{PLANNED, Recipe};
use crate::cli::config::{
    Assign, ConfigKey, Key, Origin, Origins, Schema, Sources, Value, layers, resolve,
};
use crate::cli::model::flags;
use crate::models::zoo::{Zoo, ZooError};

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
pub(in crate::cli) fn schema(zoo: &Zoo) -> Schema<Recipe> {
    let (_, rows) = Recipe::table(zoo);
    let of_model = |key: &Key<Recipe>| key.table() == "model";
    let (model, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(of_model);
    let sizes = flags::names(zoo).into_iter().map(size);
    Schema::new(model.into_iter().chain(sizes).chain(others).collect())
}

/// All keys, with what they are where nothing else is said.
pub(in crate::cli) fn keys(zoo: &Zoo) -> Vec<ConfigKey> {
    // With the numbers of the optimizer that is taken where none is named.
    let defaults = Recipe {
        warmup: None,
        ..Recipe::defaults().with_optimizer_in_full()
    };
    schema(zoo).listed(&defaults)
}

/// The key of a size that a model of the zoo has.
fn size(size: &str) -> Key<Recipe> {
    let (set, get, gone) = (size.to_owned(), size.to_owned(), size.to_owned());
    Key::of_foreign_flag(
        format!("model.{size}"),
        (flags::id(size), flags::flag(size)),
        move |text| {
            let (size, text) = (set.clone(), text.trim().to_owned());
            Assign::new(move |recipe: &mut Recipe| {
                recipe.sizes.retain(|(own, _)| *own != size);
                recipe.sizes.push((size.clone(), text.clone()));
            })
        },
        move |recipe| {
            let (_, text) = recipe.sizes.iter().find(|(own, _)| *own == get)?;
            Some(Value::Number(text.clone()))
        },
        (
            "model.name",
            Assign::new(move |recipe: &mut Recipe| recipe.sizes.retain(|(own, _)| *own != gone)),
        ),
    )
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
    let sources = Sources {
        below: below.map(|saved| (saved.path.as_path(), saved.text.as_str())),
        files: &args.config,
        set: &args.set,
        flags: &args.recipe.given,
    };
    let layers = layers(&schema, &sources)?;
    let mut defaults = Recipe {
        resuming: args.resume.is_some(),
        ..Recipe::defaults()
    };
    if let Some(own) = zoo.first_own() {
        own.clone_into(&mut defaults.model);
    }
    let (recipe, origins) = resolve(&schema, defaults, &layers).map_err(Failure::Usage)?;
    check_plan(&origins).map_err(Failure::Usage)?;
    check_sizes(zoo, &recipe, &origins).map_err(Failure::Usage)?;
    schema
        .check_only_for(&recipe, &origins)
        .map_err(Failure::Usage)?;
    Ok((recipe, origins))
}

/// A plan decides what it decides: nothing beside it or above it does.
fn check_plan(origins: &Origins) -> Result<(), String> {
    let (Some(plan), Some(layer)) = (origins.of("pipeline.plan"), origins.layer("pipeline.plan"))
    else {
        return Ok(());
    };
    let mut keys = PLANNED.map(|own| format!("pipeline.{own}")).into_iter();
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
