//! Batch norm over few values: its statistics are those of a micro-batch.

use gpipe_partitioner::words::count;

use super::recipe::Recipe;
use gpipe_models::zoo::ModelSpec;

/// Of as many values of a channel or fewer, mean and variance are noise.
const FEW: usize = 8;
/// The built-in models of images with a batch norm halve an image's sides at most so often.
const HALVINGS: u32 = 5;
/// What the running variance of a batch norm is called.
const VARIANCE: &str = "running_var";

/// What is to be known of micro-batches that are so small, in a line.
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

/// The samples of a micro-batch from which on a batch norm has more than a few values; none without a
/// batch norm.
pub(super) fn fewest_samples(spec: &ModelSpec) -> anyhow::Result<Option<usize>> {
    let places = fewest_places(spec)?;
    Ok(places.map(|places| FEW / places.max(1) + 1))
}

/// The fewest samples of a micro-batch in training: two where one gives a batch norm a single value of a
/// channel, of which it makes nothing.
pub(crate) fn fewest_in_training(spec: &ModelSpec) -> anyhow::Result<usize> {
    match spec.exported() {
        Some(model) => Ok(model.fewest_in_training()),
        None => Ok(fewest_places(spec)?.map_or(1, |places| if places > 1 { 1 } else { 2 })),
    }
}

/// The values that a sample gives a batch norm of each channel, where it gives fewest; none without
/// a batch norm.
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

    /// With two replicas 8 samples were told as 4: micro-batches are those of all replicas together.
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
