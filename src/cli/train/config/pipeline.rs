//! `[pipeline]`: devices, and how they share the work.

use std::path::PathBuf;

use tch::Device;

use super::super::device_options::Offload;
use super::super::recipe::Recipe;
use super::super::values::{
    at_least_one, balance, chunks, device, precision, recompute, schedule, seconds, threads, truth,
};
use super::{path, put};
use crate::Recompute;
use crate::cli::config::{Key, Kind, Value};
use crate::cli::model::Chosen;
use crate::models::zoo::Zoo;

pub(super) fn keys(zoo: &Zoo) -> Vec<Key<Recipe>> {
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
    let numbers = Key::new(
        "pipeline.precision",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.precision, precision(text)),
        |recipe| Some(Value::Text(recipe.precision.to_string())),
    );
    let graphs = Key::new(
        "pipeline.cuda_graphs",
        Kind::Truth,
        |recipe: &mut Recipe, text| put(&mut recipe.cuda_graphs, truth(text)),
        |recipe| recipe.cuda_graphs.then_some(Value::Truth(true)),
    );
    let threads = Key::new(
        "pipeline.threads_per_stage",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.threads_per_stage, threads(text).map(Some)),
        |recipe| recipe.threads_per_stage.map(Value::whole),
    );
    let patience = Key::new(
        "pipeline.patience",
        Kind::Number,
        |recipe: &mut Recipe, text| put(&mut recipe.patience, seconds(text).map(Some)),
        |recipe| recipe.patience.map(Value::number),
    );
    let plan = Key::new(
        "pipeline.plan",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.plan, Ok(Some(PathBuf::from(text)))),
        |recipe| recipe.plan.as_deref().map(path),
    );
    let tf32 = Key::new(
        "pipeline.tf32",
        Kind::Truth,
        |recipe: &mut Recipe, text| put(&mut recipe.on_devices.tf32, truth(text)),
        |recipe| Some(Value::Truth(recipe.on_devices.tf32)),
    );
    let deterministic = Key::new(
        "pipeline.deterministic",
        Kind::Truth,
        |recipe: &mut Recipe, text| put(&mut recipe.on_devices.deterministic, truth(text)),
        |recipe| Some(Value::Truth(recipe.on_devices.deterministic)),
    );
    vec![
        devices.flag("devices"),
        micro.flag("micro"),
        kind.flag("schedule"),
        chunks_key(),
        balance_key(zoo.clone()),
        recompute_key(),
        numbers.flag("precision"),
        graphs.flag("cuda_graphs"),
        threads.flag("threads_per_stage"),
        patience.flag("patience"),
        plan.flag("plan"),
        memory_key(),
        offload_key(),
        tf32.flag("tf32"),
        deterministic.flag("deterministic"),
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

fn memory_key() -> Key<Recipe> {
    Key::new(
        "pipeline.memory",
        Kind::List,
        |recipe: &mut Recipe, text| {
            let caps = text.split(',').map(str::parse).collect();
            put(&mut recipe.on_devices.memory, caps)
        },
        |recipe| {
            let caps = recipe.on_devices.memory.iter();
            let caps: Vec<_> = caps.map(|cap| Value::Text(cap.to_string())).collect();
            (!caps.is_empty()).then_some(Value::List(caps))
        },
    )
    .flag("memory")
    .beside(
        &["pipeline.devices"],
        |before, after| {
            let same = before.devices == after.devices;
            same || after.on_devices.check_memory(&after.devices).is_ok()
        },
        |recipe| recipe.on_devices.memory.clear(),
    )
}

fn offload_key() -> Key<Recipe> {
    Key::new(
        "pipeline.offload",
        Kind::List,
        |recipe: &mut Recipe, text| put(&mut recipe.on_devices.offload, text.parse()),
        |recipe| {
            let word = |word: &str| Some(Value::Text(word.to_owned()));
            match &recipe.on_devices.offload {
                Offload::None => word("none"),
                Offload::All => word("all"),
                Offload::Stages(own) => Some(Value::List(own.iter().map(Value::whole).collect())),
            }
        },
    )
    .flag("offload")
    .beside(
        &["pipeline.devices", "pipeline.schedule", "pipeline.chunks"],
        |before, after| {
            let same = before.stages() == after.stages();
            same || after.on_devices.offload.fits(after.stages())
        },
        |recipe| recipe.on_devices.offload = Offload::None,
    )
}

fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}
