//! Batch norm over few values: its statistics are those of a micro-batch.

use gpipe_partitioner::words::count;

use super::recipe::Recipe;
use gpipe_models::zoo::ModelSpec;

/// With this many values per channel or fewer, mean and variance are noise.
const FEW: usize = 8;
/// The built-in image models with batch norm halve an image's sides at most this often.
const HALVINGS: u32 = 5;
/// Name of the running variance of a batch norm.
const VARIANCE: &str = "running_var";

/// Notes that micro-batches are too small for batch norm.
pub(super) fn note(recipe: &Recipe, spec: &ModelSpec) -> anyhow::Result<Option<String>> {
    let samples = (recipe.batch / recipe.micro.max(1)).max(1);
    let Some(places) = fewest_places(spec)?.filter(|own| samples.saturating_mul(*own) <= FEW)
    else {
        return Ok(None);
    };
    let values = samples * places;
    Ok(Some(format!(
        "note: batch norm takes its statistics of each micro-batch, and {} give it about {} of a \
         channel: losses and gradients may be large and noisy; fewer --micro or a larger --batch \
         give it more",
        count(samples, "sample"),
        count(values, "value")
    )))
}

/// Returns the micro-batch size from which a batch norm has enough values; `None` without a batch norm.
pub(super) fn fewest_samples(spec: &ModelSpec) -> anyhow::Result<Option<usize>> {
    let places = fewest_places(spec)?;
    Ok(places.map(|places| FEW / places.max(1) + 1))
}

/// Returns the smallest micro-batch in training: two samples if one would give a batch norm a single
/// value per channel.
pub(crate) fn fewest_in_training(spec: &ModelSpec) -> anyhow::Result<usize> {
    match spec.exported() {
        Some(model) => Ok(model.fewest_in_training()),
        None => Ok(fewest_places(spec)?.map_or(1, |places| if places > 1 { 1 } else { 2 })),
    }
}

/// Returns the smallest number of values per channel that a sample gives a batch norm; `None` without a
/// batch norm.
fn fewest_places(spec: &ModelSpec) -> anyhow::Result<Option<usize>> {
    if let Some(model) = spec.exported() {
        return Ok(model.fewest_places_of_batch_norm());
    }
    let variables = spec.build().distinct_variables()?;
    if !variables.iter().any(|own| own.name().ends_with(VARIANCE)) {
        return Ok(None);
    }
    let shape = spec.inputs().first().map_or(&[][..], |input| input.shape());
    let sides = shape
        .iter()
        .skip(1)
        .map(|side| (*side as usize >> HALVINGS).max(1));
    Ok(Some(sides.product()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpipe_models::zoo::Zoo;

    /// With two replicas, 8 samples were reported as 4: micro-batches are those of all replicas
    /// together.
    #[test]
    fn micro_batches_of_replicas_have_the_samples_that_they_have() {
        let spec = Zoo::builtin().spec("resnet50", ["image=32"]).unwrap();
        let told = |replicas| {
            let recipe = Recipe {
                batch: 32,
                micro: 4,
                replicas,
                ..Recipe::defaults()
            };
            note(&recipe, &spec).unwrap().unwrap()
        };
        assert!(told(1).contains("8 samples give it"), "{}", told(1));
        assert_eq!(told(2), told(1));
    }
}
