//! `[model]`: its name, and a key for every size that a model of the zoo has.

use std::path::PathBuf;

use super::super::recipe::Recipe;
use super::{path, put};
use crate::cli::config::{Key, Kind, Value};
use crate::cli::model::flags;
use crate::models::zoo::Zoo;

pub(super) fn keys(zoo: &Zoo) -> Vec<Key<Recipe>> {
    let name = Key::new(
        "model.name",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.model, Ok(text.to_owned())),
        |recipe| Some(Value::Text(recipe.model.clone())),
    );
    let weights = Key::new(
        "model.weights",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.weights, Ok(Some(PathBuf::from(text)))),
        |recipe| recipe.weights.as_deref().map(path),
    );
    let own = [name.flag("model"), weights.flag("weights")];
    let sizes = flags::names(zoo).into_iter().map(size);
    own.into_iter().chain(sizes).collect()
}

fn size(size: &str) -> Key<Recipe> {
    let (set, get, gone) = (size.to_owned(), size.to_owned(), size.to_owned());
    Key::new(
        format!("model.{size}"),
        Kind::Number,
        move |recipe: &mut Recipe, text| {
            recipe.sizes.retain(|(own, _)| *own != set);
            recipe.sizes.push((set.clone(), text.trim().to_owned()));
            Ok(())
        },
        move |recipe| {
            let (_, text) = recipe.sizes.iter().find(|(own, _)| *own == get)?;
            Some(Value::Number(text.clone()))
        },
    )
    .flag_called(&flags::id(size), flags::flag(size))
    .beside(
        &["model.name"],
        |before, after| before.model == after.model,
        move |recipe| recipe.sizes.retain(|(own, _)| *own != gone),
    )
}
