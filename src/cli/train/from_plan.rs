//! Training by a plan.

use std::path::Path;

use gpipe_partitioner::{ModelId, Plan};

use super::Failure;
use super::recipe::Recipe;
use crate::Recompute;
use crate::cli::model::Chosen;
use crate::cli::model::flags::flag;
use crate::cli::say;
use crate::models::zoo::ModelSpec;

/// The size that is the data's where nobody chose it.
const OF_DATA: &str = "vocab";

/// Reads a plan; a file that is none is wrong use, with file, field and rule.
pub(super) fn read(path: &Path) -> Result<Plan, Failure> {
    Plan::read(path).map_err(|error| Failure::Usage(format!("--plan: {error}")))
}

/// The recipe that says what the plan says, where it fits the others and the model.
pub(super) fn applied(recipe: &Recipe, plan: &Plan, chosen: &Chosen) -> Result<Recipe, Failure> {
    let wrong = |rule: String| Err(Failure::Usage(format!("--plan: {rule}")));
    if let Some(model) = &plan.model {
        check_model(model, chosen).map_err(|rule| Failure::Usage(format!("--plan: {rule}")))?;
    }
    let layers = plan.partition.layers();
    if layers != chosen.layers() {
        let sizes = match chosen.size_for(|own| own == layers) {
            Some(flag) => format!("use {flag}, or profile this model"),
            None => "name the model that was profiled, or profile this one".to_owned(),
        };
        return wrong(format!(
            "it is for a model of {layers} layers, but `{}` has {}: {sizes}",
            chosen.spec.name(),
            chosen.describe_layers(),
        ));
    }
    let (devices, own) = (plan.devices(), recipe.devices.len());
    if devices != own {
        return wrong(format!(
            "it is for {devices} devices, but --devices names {own}: name {devices}, or profile \
             for {own}"
        ));
    }
    let size = recipe.batch.div_ceil(plan.micro_batches);
    if size != plan.micro_batch_size {
        return wrong(format!(
            "its {} micro-batches have {} samples each, which does not make --batch {}: use \
             --batch {}, or make a plan for this one (`plan --profile PROFILE --batch {}`)",
            plan.micro_batches,
            plan.micro_batch_size,
            recipe.batch,
            plan.micro_batches.saturating_mul(plan.micro_batch_size),
            recipe.batch,
        ));
    }
    let schedule = plan.generate();
    if let Err(error) = schedule {
        return wrong(format!("its schedule {}: {error}", plan.schedule));
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
        ..recipe.clone()
    })
}

/// That the model is the one that was profiled.
fn check_model(planned: &ModelId, chosen: &Chosen) -> Result<(), String> {
    let (kind, name) = (chosen.spec.entry().name(), chosen.spec.name());
    if planned.name() != kind {
        return Err(format!(
            "it is for the model `{}`, but this is `{name}`: name that one, or profile this one",
            planned.name()
        ));
    }
    let by_data = |size: &str| size == OF_DATA && !chosen.chose(size);
    let sizes = chosen.spec.settings().iter();
    let differ: Vec<(&str, f64, f64)> = sizes
        .filter(|(size, _)| !by_data(size))
        .map(|(size, own)| (size, planned.setting(size).unwrap_or(own), own))
        .filter(|(_, planned, own)| planned.total_cmp(own).is_ne())
        .collect();
    if differ.is_empty() {
        return Ok(());
    }
    let all = |text: &dyn Fn(&(&str, f64, f64)) -> String, between: &str| {
        differ.iter().map(text).collect::<Vec<_>>().join(between)
    };
    Err(format!(
        "it is for `{name}` with {}, not {}: use {}, or profile this one",
        all(&|(size, planned, _)| format!("{size}={planned}"), ", "),
        all(&|(_, _, own)| own.to_string(), ", "),
        all(
            &|(size, planned, _)| format!("{} {planned}", flag(size)),
            " "
        ),
    ))
}

/// What is to be known of a plan that was made for another vocabulary than the data's.
pub(super) fn note(plan: &Plan, spec: &ModelSpec) -> Option<String> {
    let planned = plan.model.as_ref()?.setting(OF_DATA)?;
    let own = spec.settings().iter().find(|(size, _)| *size == OF_DATA)?;
    (planned.total_cmp(&own.1).is_ne()).then(|| {
        format!(
            "the plan was made for a vocabulary of {planned}, and the data's is {}: profile with \
             the same --data for closer times",
            own.1
        )
    })
}

/// What the plan's measurements were doubted for.
pub(super) fn doubts(plan: &Plan) -> impl Iterator<Item = String> {
    let doubts = plan.doubts.iter();
    doubts.map(|doubt| format!("note: of the profile that the plan was made from: {doubt}"))
}
