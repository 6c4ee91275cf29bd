//! Training with a plan.

use std::path::Path;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Neighbours, Plan};

use super::Failure;
use super::recipe::Recipe;
use crate::config::Origins;
use crate::config::values::Offload;
use crate::model::Chosen;
use crate::{input, say};
use gpipe_models::zoo::Zoo;
use gpipe_torch::Recompute;

/// Reads a plan; an invalid file is wrong use, reported with file, field and rule.
fn read(path: &Path) -> Result<Plan, Failure> {
    Plan::read(path).map_err(|error| input::in_file("--plan", path, error))
}

/// Reads the plan of a recipe, and applies its implications.
pub(super) fn planned(
    recipe: Recipe,
    origins: &Origins,
    zoo: &Zoo,
) -> Result<(Recipe, Option<Plan>), Failure> {
    let Some(path) = recipe.plan.as_deref() else {
        return Ok((recipe, None));
    };
    let plan = read(path)?;
    Ok((filled(recipe, &plan, origins, zoo)?, Some(plan)))
}

/// Fills in the plan's model, sizes and mini-batch, unless given.
fn filled(recipe: Recipe, plan: &Plan, origins: &Origins, zoo: &Zoo) -> Result<Recipe, Failure> {
    let unsaid = |key: &str| origins.of(key).is_none();
    let mut recipe = recipe;
    if let Some(batch) = plan.batch.filter(|_| unsaid("train.batch")) {
        recipe.batch = batch;
    }
    let Some(planned) = &plan.model else {
        return Ok(recipe);
    };
    let knows = zoo.entries().any(|own| own.name() == planned.name());
    if knows && unsaid("model.name") {
        planned.name().clone_into(&mut recipe.model);
    }
    let chosen = Chosen::new(zoo, &recipe.model, &recipe.sizes, recipe.asked_loss())?;
    if chosen.spec.exported().is_none() && chosen.spec.entry().name() == planned.name() {
        recipe.sizes.extend(chosen.unsaid_sizes(planned));
    }
    Ok(recipe)
}

/// Applies the plan to the recipe, if it fits the other settings and the model.
pub(super) fn applied(recipe: &Recipe, plan: &Plan, chosen: &Chosen) -> Result<Recipe, Failure> {
    let wrong = |rule: String| Failure::Usage(format!("--plan: {rule}"));
    if plan.tensor_parallel > 1 {
        return Err(wrong(format!(
            "its devices are groups of {} cards that share every layer (tensor parallelism), which \
             `train` does not have: make a plan without --tensor-parallel",
            plan.tensor_parallel
        )));
    }
    chosen.check_plan(plan).map_err(wrong)?;
    check_devices(plan, recipe).map_err(wrong)?;
    let size = recipe.batch.div_ceil(plan.micro_batches);
    if size != plan.micro_batch_size {
        return Err(wrong(format!(
            "its {} have {} each, which does not make --batch {}: use \
             --batch {}, or make a plan for this one (`plan --profile PROFILE --batch {}`)",
            count(plan.micro_batches, "micro-batch"),
            count(plan.micro_batch_size, "sample"),
            recipe.batch,
            plan.micro_batches.saturating_mul(plan.micro_batch_size),
            recipe.batch,
        )));
    }
    if let Some(batch) = plan.batch.filter(|own| *own != recipe.batch) {
        say(&format!(
            "note: the plan is for mini-batches of {}, and --batch {} makes a last micro-batch of \
             another size: its times are not those of this run (`plan --profile PROFILE --batch {}` \
             makes one for it)",
            count(batch, "sample"),
            recipe.batch,
            recipe.batch
        ));
    }
    let schedule = plan.generate();
    if let Err(error) = schedule {
        return Err(wrong(format!("its schedule {}: {error}", plan.schedule)));
    }
    let precision = recipe.precision.name();
    if let Some(measured) = plan.precision.as_deref().filter(|own| *own != precision) {
        say(&format!(
            "warning: the plan is for layers that compute in {measured}, and this run computes in \
             {precision}: it may not be the best one, and its memory is another (--precision \
             {measured}, or `profile --precision {precision}`)"
        ));
    }
    let measured = plan.kernels.as_deref().unwrap_or("libtorch");
    let kernels = recipe.kernels.or_else(|| measured.parse().ok());
    let asked = recipe.kernels.map(|own| own.to_string());
    if let Some(kernels) = asked.filter(|own| own != measured) {
        say(&format!(
            "warning: the plan is for the kernels `{measured}`, and this run computes with `{kernels}`: \
             it may not be the best one (--kernels {measured}, or `profile --kernels {kernels}`)"
        ));
    }
    let on_gpus = recipe.devices.iter().all(|own| own.is_cuda());
    if let Some(device) = plan.device.as_deref().filter(|_| !on_gpus) {
        say(&format!(
            "warning: the plan is for layers that were measured on {device}, and this run does not \
             compute there alone: its times are not those of this run (--devices {device})"
        ));
    }
    if let Some(nodes) = plan.nodes.as_ref().filter(|nodes| nodes.count() > 1) {
        say(&format!(
            "warning: the plan is for devices of {} machines, and these are on one: it may not be \
             the best one",
            nodes.count()
        ));
    }
    if plan.replicas > 1 && plan.neighbours == Neighbours::Stages {
        let (stages, replicas) = (plan.devices(), plan.replicas);
        say(&format!(
            "warning: in the plan the {stages} devices of a replica are neighbours, and here the \
             {replicas} copies of a stage come one after the other: unless --devices names them in \
             that order, links between nodes have more to carry"
        ));
    }
    if plan.model.is_none() {
        say(&format!(
            "warning: the plan does not say for which model it was made; it has as many layers as \
             `{}`, and that is all that was compared",
            chosen.spec.name()
        ));
    }
    Ok(Recipe {
        micro: plan.micro_batches,
        schedule: plan.schedule,
        chunks: Some(plan.chunks),
        balance: Some(plan.partition.balance()),
        recompute: Recompute::of_stages(&plan.recompute),
        offload: Offload::of_stages(&plan.offload),
        cuda_graphs: plan.cuda_graphs,
        kernels,
        replicas: plan.replicas,
        // Each replica has at least one leaf.
        tree: recipe.tree.max(plan.replicas),
        shard_optimizer: recipe.shard_optimizer || plan.shard_optimizer,
        ..recipe.clone()
    })
}

/// Checks that the plan's devices match those of all processes.
fn check_devices(plan: &Plan, recipe: &Recipe) -> Result<(), String> {
    let (devices, own) = (plan.devices() * plan.replicas, recipe.all_devices());
    if devices == own {
        return Ok(());
    }
    let named = recipe.devices.len();
    Err(if plan.replicas > 1 {
        format!(
            "it is for {} replicas of {}, {devices} in all, but --devices names {own}: name {devices}",
            plan.replicas,
            count(plan.devices(), "device"),
        )
    } else if own == named {
        format!(
            "it is for {}, but --devices names {own}: name {devices}, or profile for {own}",
            count(devices, "device")
        )
    } else {
        format!(
            "it is for {}, but --devices names {named} in each of {} processes, {own} in all: \
             profile for {own}, or train on {devices}",
            count(devices, "device"),
            own / named.max(1)
        )
    })
}
