//! Checks that this process can hold its part of the model.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Partition, StageId};

use super::recipe::Recipe;
use crate::{Failure, host_memory};
use gpipe_models::hugging_face;
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::{OptimizerKind, Precision, Recompute};

/// Lower bound of the numbers that a block keeps per token for its backward, as a multiple of
/// `d_model`: its input, both normalisations and the inputs of attention; its MLP's are added.
const KEPT: u64 = 6;
/// A parameter and its gradient.
const TRAINED: u64 = 2;

/// Checks that the host has memory for the parameters, gradients and optimizer state of this process's
/// stages, if all are on CPUs. With several processes the lightest stages are counted, so that nothing
/// that fits is rejected.
pub(super) fn check(recipe: &Recipe, spec: &ModelSpec) -> Result<(), Failure> {
    if !host_memory::is_host(&recipe.devices) {
        return Ok(());
    }
    let layers = spec.build().parameter_bytes()?;
    // An impossible cut is rejected where the pipeline is built.
    let Some(stages) = stage_bytes(recipe, &layers) else {
        return Ok(());
    };
    let here = recipe.devices.len() * recipe.chunks();
    let part = lightest(stages, here);
    let remembered = part.saturating_mul(numbers(&recipe.optimizer_kind()));
    let owners = if recipe.shard_optimizer {
        recipe.replicas.max(1) as u64
    } else {
        1
    };
    let needs = part
        .saturating_mul(TRAINED)
        .saturating_add(remembered / owners);
    let of = match recipe.processes {
        0 | 1 => String::new(),
        _ => " in each process".to_owned(),
    };
    let name = spec.name();
    let what = format!("parameters, gradients and the optimizer of `{name}`{of}");
    let instead = "take smaller sizes, more processes, or devices of their own memory";
    host_memory::check(&what, needs, instead).map_err(Failure::Usage)?;
    activations(recipe, spec)
}

/// Checks that the host has memory for a transformer's activations of one micro-batch: otherwise the
/// system would kill the program in the first step, without a message.
fn activations(recipe: &Recipe, spec: &ModelSpec) -> Result<(), Failure> {
    if !hugging_face::has(spec) {
        return Ok(());
    }
    let size = |name: &str| spec.settings().count(name).unsigned_abs();
    let samples = (recipe.batch / recipe.micro.max(1)).max(1) as u64;
    // Without recomputing, all blocks' activations exist when the first backward begins.
    let blocks = match (&recipe.recompute, recipe.processes) {
        (Recompute::Never, 0 | 1) => size("layers"),
        _ => 1,
    };
    let number = match recipe.precision {
        Precision::F32 => 4,
        _ => 2,
    };
    let needs = [size("context"), size("d_model"), KEPT, number, blocks];
    let needs = needs.into_iter().fold(samples, u64::saturating_mul);
    let what = format!(
        "the activations of `{}` for {} of {} tokens, a micro-batch,",
        spec.name(),
        count(samples as usize, "sequence"),
        size("context")
    );
    let instead =
        "take a smaller --context, more --micro or a smaller --batch, or --recompute always";
    host_memory::check(&what, needs, instead).map_err(Failure::Usage)
}

/// Returns the parameter bytes of each stage.
fn stage_bytes(recipe: &Recipe, layers: &[u64]) -> Option<Vec<u64>> {
    let partition = match &recipe.balance {
        Some(balance) => Partition::from_balance(layers.len(), balance),
        None => Partition::by_weight(layers, recipe.stages()),
    };
    let partition = partition.ok()?;
    let stages = (0..partition.stages()).map(|stage| partition.range(StageId(stage)));
    Some(stages.map(|own| layers[own].iter().sum()).collect())
}

/// Returns the total bytes of the `count` lightest stages, which repeat for each replica.
fn lightest(mut stages: Vec<u64>, count: usize) -> u64 {
    stages.sort_unstable();
    stages.iter().cycle().take(count).sum()
}

/// Numbers of optimizer state per parameter.
fn numbers(kind: &OptimizerKind) -> u64 {
    match kind {
        OptimizerKind::Sgd(sgd) => u64::from(sgd.momentum != 0.0),
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpipe_torch::AdamW;
    use gpipe_torch::Sgd;

    #[test]
    fn a_process_is_asked_for_the_least_that_its_stages_can_be() {
        let stages = || vec![30, 10, 20];
        // One of three processes; all stages; stages of two replicas.
        assert_eq!(lightest(stages(), 1), 10);
        assert_eq!(lightest(stages(), 3), 60);
        assert_eq!(lightest(stages(), 6), 120);
    }

    #[test]
    fn optimizers_remember_what_they_do() {
        let sgd = Sgd::default();
        assert_eq!(
            numbers(
                &Sgd {
                    momentum: 0.0,
                    ..sgd
                }
                .into()
            ),
            0
        );
        assert_eq!(
            numbers(
                &Sgd {
                    momentum: 0.9,
                    ..sgd
                }
                .into()
            ),
            1
        );
        assert_eq!(numbers(&AdamW::default().into()), 2);
    }
}
