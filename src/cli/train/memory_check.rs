//! Whether this process can hold its part of what is trained.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Partition, StageId};

use super::recipe::Recipe;
use crate::{Failure, host_memory};
use gpipe_models::hugging_face;
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::{OptimizerKind, Precision, Recompute};

/// Numbers that a block keeps of each token for its backward, for each of `d_model`, at the least: its
/// input, both normalisations and what attention is of; that of its MLP comes on top.
const KEPT: u64 = 6;
/// A parameter and its gradient.
const TRAINED: u64 = 2;

/// That the host has room for the parameters, the gradients and the optimizer's numbers of the
/// stages of this process, where they are all on CPUs. Of several processes each has some of the
/// stages; what is counted are the lightest ones, so that none is refused which fits.
pub(super) fn check(recipe: &Recipe, spec: &ModelSpec) -> Result<(), Failure> {
    if !host_memory::is_host(&recipe.devices) {
        return Ok(());
    }
    let layers = spec.build().parameter_bytes()?;
    // What cannot be cut so is refused where it is built.
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

/// That the host has room for what a transformer computes of one micro-batch: a system that has not
/// ends the program in the first step, without a word.
fn activations(recipe: &Recipe, spec: &ModelSpec) -> Result<(), Failure> {
    if !hugging_face::has(spec) {
        return Ok(());
    }
    let size = |name: &str| spec.settings().count(name).unsigned_abs();
    let samples = (recipe.batch / recipe.micro.max(1)).max(1) as u64;
    // Those of all blocks are there when the first backward begins, unless they are computed again.
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

/// Bytes of the parameters of each stage, as the pipeline is cut.
fn stage_bytes(recipe: &Recipe, layers: &[u64]) -> Option<Vec<u64>> {
    let partition = match &recipe.balance {
        Some(balance) => Partition::from_balance(layers.len(), balance),
        None => Partition::by_weight(layers, recipe.stages()),
    };
    let partition = partition.ok()?;
    let stages = (0..partition.stages()).map(|stage| partition.range(StageId(stage)));
    Some(stages.map(|own| layers[own].iter().sum()).collect())
}

/// The bytes of the `count` lightest stages; of several replicas each stage is there again.
fn lightest(mut stages: Vec<u64>, count: usize) -> u64 {
    stages.sort_unstable();
    stages.iter().cycle().take(count).sum()
}

/// Numbers that an optimizer remembers of each parameter.
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
        // One of three processes; all stages; those of two replicas.
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
