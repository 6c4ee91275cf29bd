//! Training by a plan.

use std::path::Path;

use gpipe_partitioner::Plan;

use super::Failure;
use super::recipe::Recipe;
use crate::Recompute;
use crate::cli::model::Chosen;

/// Reads a plan; a file that is none is wrong use, with file, field and rule.
pub(super) fn read(path: &Path) -> Result<Plan, Failure> {
    Plan::read(path).map_err(|error| Failure::Usage(format!("--plan: {error}")))
}

/// The recipe that says what the plan says, where it fits the others and the model.
pub(super) fn applied(recipe: &Recipe, plan: &Plan, chosen: &Chosen) -> Result<Recipe, Failure> {
    let wrong = |rule: String| Err(Failure::Usage(format!("--plan: {rule}")));
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
             --batch {}, or profile with this --batch",
            plan.micro_batches,
            plan.micro_batch_size,
            recipe.batch,
            plan.micro_batches.saturating_mul(plan.micro_batch_size)
        ));
    }
    let schedule = plan.generate();
    if let Err(error) = schedule {
        return wrong(format!("its schedule {}: {error}", plan.schedule));
    }
    Ok(Recipe {
        micro: plan.micro_batches,
        schedule: plan.schedule,
        chunks: Some(plan.chunks),
        balance: Some(plan.partition.balance()),
        recompute: recompute(&plan.recompute),
        ..recipe.clone()
    })
}

/// In one word where there is one.
fn recompute(stages: &[bool]) -> Recompute {
    match (stages.contains(&true), stages.contains(&false)) {
        (false, _) => Recompute::Never,
        (_, false) => Recompute::Always,
        _ => Recompute::Stages(stages.to_vec()),
    }
}
