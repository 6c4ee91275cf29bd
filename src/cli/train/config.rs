//! Configuration keys of a run.

use super::recipe::Recipe;
use crate::config::{Assign, ConfigKey, Key, Schema, Value};
use crate::model::flags;
use gpipe_models::zoo::Zoo;

/// Returns all keys, by table.
pub(crate) fn schema(zoo: &Zoo) -> Schema<Recipe> {
    let (_, rows) = Recipe::table(zoo);
    let of_model = |key: &Key<Recipe>| key.table() == "model";
    let (model, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(of_model);
    let sizes = flags::names(zoo).into_iter().map(size);
    Schema::new(model.into_iter().chain(sizes).chain(others).collect())
}

/// Returns all keys with their defaults.
pub(crate) fn keys(zoo: &Zoo) -> Vec<ConfigKey> {
    // With the numbers of the default optimizer.
    let defaults = Recipe {
        warmup: None,
        ..Recipe::defaults().with_optimizer_in_full()
    };
    schema(zoo).listed(&defaults)
}

/// Makes the key of a model size in the zoo.
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
