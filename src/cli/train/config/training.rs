//! `[train]`, `[data]`, `[checkpoint]` and `[metrics]`.

use std::path::PathBuf;

use super::super::recipe::Recipe;
use super::super::values::{at_least_one, positive, steps};
use super::{path, put};
use crate::cli::config::{Key, Kind, Value};
use crate::cli::input;

pub(super) fn train() -> Vec<Key<Recipe>> {
    let number = Key::new(
        "train.steps",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.steps, at_least_one(text)),
        |recipe| Some(Value::whole(recipe.steps)),
    );
    let batch = Key::new(
        "train.batch",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.batch, at_least_one(text)),
        |recipe| Some(Value::whole(recipe.batch)),
    );
    let seed = Key::new(
        "train.seed",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.seed, input::seed(text)),
        |recipe| Some(Value::whole(recipe.seed)),
    );
    let clip = Key::new(
        "train.clip",
        Kind::Number,
        |recipe: &mut Recipe, text| put(&mut recipe.clip, positive(text).map(Some)),
        |recipe| recipe.clip.map(Value::number),
    );
    vec![
        number.flag("steps"),
        batch.flag("batch"),
        seed.flag("seed"),
        clip.flag("clip"),
    ]
}

pub(super) fn data() -> Vec<Key<Recipe>> {
    let source = Key::new(
        "data.path",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.data, Ok(Some(PathBuf::from(text)))),
        |recipe| recipe.data.as_deref().map(path),
    );
    let held_out = Key::new(
        "data.held_out",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.held_out, steps(text).map(Some)),
        |recipe| recipe.held_out.map(Value::whole),
    );
    vec![source.flag("data"), held_out.flag("held_out")]
}

pub(super) fn checkpoint() -> Vec<Key<Recipe>> {
    let every = Key::new(
        "checkpoint.every",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.checkpoint_every, steps(text)),
        |recipe| Some(Value::whole(recipe.checkpoint_every)),
    );
    let keep = Key::new(
        "checkpoint.keep",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.checkpoint_keep, at_least_one(text)),
        |recipe| Some(Value::whole(recipe.checkpoint_keep)),
    );
    vec![every.flag("checkpoint_every"), keep.flag("checkpoint_keep")]
}

pub(super) fn metrics() -> Vec<Key<Recipe>> {
    let peak = Key::new(
        "metrics.peak_flops",
        Kind::Number,
        |recipe: &mut Recipe, text| put(&mut recipe.peak_flops, positive(text).map(Some)),
        |recipe| recipe.peak_flops.map(Value::number),
    );
    let needed = Key::new(
        "metrics.flops_per_sample",
        Kind::Number,
        |recipe: &mut Recipe, text| put(&mut recipe.flops_per_sample, positive(text).map(Some)),
        |recipe| recipe.flops_per_sample.map(Value::number),
    );
    vec![peak.flag("peak_flops"), needed]
}
