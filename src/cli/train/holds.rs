//! Whether this process can hold its part of what is trained.

use gpipe_partitioner::{Partition, StageId};

use super::recipe::Recipe;
use crate::OptimizerKind;
use crate::cli::{Failure, room};
use crate::models::zoo::ModelSpec;

/// A parameter and its gradient.
const TRAINED: u64 = 2;

/// That the host has room for the parameters, the gradients and the optimizer's numbers of the
/// stages of this process, where they are all on CPUs. Of several processes each has some of the
/// stages; what is counted are the lightest ones, so that none is refused which fits.
pub(super) fn check(recipe: &Recipe, spec: &ModelSpec) -> Result<(), Failure> {
    if !room::is_host(&recipe.devices) {
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
    room::check(&what, needs, instead).map_err(Failure::Usage)
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
    use crate::{AdamW, Sgd};

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
