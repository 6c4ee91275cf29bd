//! The keys of a run's configuration, and how a run comes by its recipe.

use std::path::{Path, PathBuf};

use tch::Device;

use super::Failure;
use super::options::Args;
use super::recipe::Recipe;
use super::values::{
    at_least_one, balance, chunks, device, positive, recompute, schedule, seed, steps, threads,
};
use crate::Recompute;
use crate::cli::config::{self, Key, Kind, Layer, Origin, Origins, Schema, Value};
use crate::cli::model::{Chosen, flags};
use crate::models::zoo::{Zoo, ZooError};

/// What a plan decides.
const PLANNED: [&str; 5] = [
    "pipeline.micro",
    "pipeline.schedule",
    "pipeline.chunks",
    "pipeline.recompute",
    "pipeline.balance",
];

/// All keys, table by table.
pub(super) fn schema(zoo: &Zoo) -> Schema<Recipe> {
    let tables = [model(zoo), pipeline(zoo), train(), rate(), data()];
    Schema::new(tables.into_iter().flatten().collect())
}

/// Puts together what files, the environment, `--set` and flags say, and where each
/// value is from; `below` are files that everything else goes on top of.
pub(super) fn recipe(
    args: &Args,
    zoo: &Zoo,
    below: &[PathBuf],
) -> Result<(Recipe, Origins), Failure> {
    let schema = schema(zoo);
    let files = below.iter().chain(&args.config);
    let mut layers: Vec<Layer> = files.map(|path| file(path)).collect::<Result<_, _>>()?;
    let variables = std::env::vars_os();
    layers.push(config::environment(&schema, variables).map_err(Failure::Usage)?);
    layers.push(config::set(&args.set).map_err(Failure::Usage)?);
    layers.push(schema.flags(&args.given));
    let defaults = Recipe::defaults()?;
    let (recipe, origins) = config::resolve(&schema, defaults, &layers).map_err(Failure::Usage)?;
    check_plan(&origins).map_err(Failure::Usage)?;
    check_sizes(zoo, &recipe, &origins).map_err(Failure::Usage)?;
    Ok((recipe, origins))
}

fn file(path: &Path) -> Result<Layer, Failure> {
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

fn model(zoo: &Zoo) -> Vec<Key<Recipe>> {
    let name = Key::new(
        "model.name",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.model, Ok(text.to_owned())),
        |recipe| Some(Value::Text(recipe.model.clone())),
    );
    let sizes = flags::names(zoo).into_iter().map(size);
    std::iter::once(name.flag("model")).chain(sizes).collect()
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
    .flag(flags::id(size))
    .beside(
        &["model.name"],
        |before, after| before.model == after.model,
        move |recipe| recipe.sizes.retain(|(own, _)| *own != gone),
    )
}

fn pipeline(zoo: &Zoo) -> Vec<Key<Recipe>> {
    let devices = Key::new(
        "pipeline.devices",
        Kind::List,
        |recipe: &mut Recipe, text| put(&mut recipe.devices, text.split(',').map(device).collect()),
        |recipe| {
            let names = recipe.devices.iter().map(|device| device_name(*device));
            Some(Value::List(names.map(Value::Text).collect()))
        },
    );
    let micro = Key::new(
        "pipeline.micro",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.micro, at_least_one(text)),
        |recipe| Some(Value::whole(recipe.micro)),
    );
    let kind = Key::new(
        "pipeline.schedule",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.schedule, schedule(text)),
        |recipe| Some(Value::Text(recipe.schedule.to_string())),
    );
    let threads = Key::new(
        "pipeline.threads_per_stage",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.threads_per_stage, threads(text).map(Some)),
        |recipe| recipe.threads_per_stage.map(Value::whole),
    );
    let plan = Key::new(
        "pipeline.plan",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.plan, Ok(Some(PathBuf::from(text)))),
        |recipe| recipe.plan.as_deref().map(path),
    );
    vec![
        devices.flag("devices"),
        micro.flag("micro"),
        kind.flag("schedule"),
        chunks_key(),
        balance_key(zoo.clone()),
        recompute_key(),
        threads.flag("threads_per_stage"),
        plan.flag("plan"),
    ]
}

fn chunks_key() -> Key<Recipe> {
    Key::new(
        "pipeline.chunks",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.chunks, chunks(text).map(Some)),
        |recipe| recipe.chunks.map(Value::whole),
    )
    .flag("chunks")
    .beside(
        &["pipeline.schedule"],
        |before, after| before.schedule == after.schedule,
        |recipe| recipe.chunks = None,
    )
}

fn balance_key(zoo: Zoo) -> Key<Recipe> {
    Key::new(
        "pipeline.balance",
        Kind::List,
        |recipe: &mut Recipe, text| put(&mut recipe.balance, balance(text).map(Some)),
        |recipe| {
            let stages = recipe.balance.as_ref()?.iter();
            Some(Value::List(stages.map(Value::whole).collect()))
        },
    )
    .flag("balance")
    .beside(
        &["pipeline.devices", "pipeline.schedule", "model.name"],
        move |before, after| {
            let same_model = (&before.model, &before.sizes) == (&after.model, &after.sizes);
            before.stages() == after.stages() && same_model || fits(&zoo, after)
        },
        |recipe| recipe.balance = None,
    )
}

/// Whether the balance names as many stages and layers as there are.
fn fits(zoo: &Zoo, recipe: &Recipe) -> bool {
    recipe.balance.as_ref().is_some_and(|balance| {
        let add = |sum: usize, layers: &usize| sum.saturating_add(*layers);
        let sum = balance.iter().fold(0, add);
        balance.len() == recipe.stages() && layers(zoo, recipe).is_none_or(|own| own == sum)
    })
}

/// Layers of the model, where it is one of the zoo's and can be.
fn layers(zoo: &Zoo, recipe: &Recipe) -> Option<usize> {
    let known = zoo.names().any(|name| name == recipe.model);
    let chosen = known.then(|| Chosen::new(zoo, &recipe.model, &recipe.sizes));
    Some(chosen?.ok()?.layers())
}

fn recompute_key() -> Key<Recipe> {
    Key::new(
        "pipeline.recompute",
        Kind::List,
        |recipe: &mut Recipe, text| put(&mut recipe.recompute, recompute(text)),
        |recipe| match &recipe.recompute {
            Recompute::Stages(stages) => {
                let stages = stages.iter().copied().map(Value::Truth);
                Some(Value::List(stages.collect()))
            }
            word => Some(Value::Text(word.to_string())),
        },
    )
    .flag("recompute")
    .beside(
        &["pipeline.devices", "pipeline.schedule"],
        |before, after| {
            let of_stages = matches!(before.recompute, Recompute::Stages(_));
            !of_stages || before.stages() == after.stages()
        },
        |recipe| recipe.recompute = Recompute::Never,
    )
}

fn train() -> Vec<Key<Recipe>> {
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
        |recipe: &mut Recipe, text| put(&mut recipe.seed, seed(text)),
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

/// The optimizer, and how its learning rate goes.
fn rate() -> Vec<Key<Recipe>> {
    let rate = Key::new(
        "optimizer.lr",
        Kind::Number,
        |recipe: &mut Recipe, text| put(&mut recipe.lr, positive(text)),
        |recipe| Some(Value::number(recipe.lr)),
    );
    let warmup = Key::new(
        "lr.warmup",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.warmup, steps(text).map(Some)),
        |recipe| recipe.warmup.map(Value::whole),
    );
    vec![rate.flag("lr"), warmup.flag("warmup")]
}

fn data() -> Vec<Key<Recipe>> {
    let source = Key::new(
        "data.path",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.data, Ok(Some(PathBuf::from(text)))),
        |recipe| recipe.data.as_deref().map(path),
    );
    vec![source.flag("data")]
}

fn put<T>(slot: &mut T, value: Result<T, String>) -> Result<(), String> {
    *slot = value?;
    Ok(())
}

fn path(path: &Path) -> Value {
    Value::Text(path.to_string_lossy().into_owned())
}

fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}
