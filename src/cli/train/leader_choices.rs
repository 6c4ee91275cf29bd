//! What is measured or found out on one machine and then holds for all processes of a run: whose
//! kernels compute, and where the layers are cut.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Micros, Partition};
use serde::{Deserialize, Serialize};
use tch::Device;

use super::Failure;
use super::recipe::Recipe;
use super::usual_values::has_convolutions;
use crate::model::Chosen;
use crate::world::of_leader;
use gpipe_torch::profile::layer_times;
use gpipe_torch::world::World;
use gpipe_torch::{Kernels, ProfileOptions, Sample};

/// What rank 0 tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Decided {
    kernels: String,
    balance: Option<Vec<usize>>,
    said: Option<String>,
}

/// Gives a recipe the kernels and the cut that rank 0 finds, where nobody has said any; and what
/// there is to say of it. All processes call this.
///
/// # Errors
/// A process is lost.
pub(super) fn decided(
    recipe: Recipe,
    chosen: &Chosen,
    world: Option<&Arc<World>>,
) -> Result<(Recipe, Option<String>), Failure> {
    let all = of_leader(world, || {
        let kernels = recipe.kernels.unwrap_or_else(|| kernels(&recipe));
        let cut = by_time(&recipe, kernels, chosen);
        let (balance, said) = cut.unzip();
        Decided {
            kernels: kernels.to_string(),
            balance,
            said,
        }
    })?;
    let kernels = all.kernels.parse().map_err(Failure::Usage)?;
    let recipe = Recipe {
        kernels: Some(recipe.kernels.unwrap_or(kernels)),
        balance: recipe.balance.or(all.balance),
        ..recipe
    };
    Ok((recipe, all.said))
}

/// Those that are faster here. A run from before there was a choice had libtorch's.
fn kernels(recipe: &Recipe) -> Kernels {
    if recipe.resuming || !recipe.devices.contains(&Device::Cpu) {
        return Kernels::Libtorch;
    }
    Kernels::auto()
}

/// The layers of each stage by what they take here, where parameters do not tell; and a line
/// about it. None also where a layer fails: training fails there too, and says more of it.
fn by_time(recipe: &Recipe, kernels: Kernels, chosen: &Chosen) -> Option<(Vec<usize>, String)> {
    let (stages, spec) = (recipe.stages(), &chosen.spec);
    let is_free = recipe.balance.is_none() && (2..chosen.layers()).contains(&stages);
    if !is_free || (spec.exported().is_none() && !has_convolutions(spec).ok()?) {
        return None;
    }
    let begun = Instant::now();
    let size = recipe.batch.div_ceil(recipe.micro.max(1));
    let (inputs, targets) = spec.sample(size, recipe.seed).ok()?;
    let sample = Sample::new(inputs);
    let sample = match (spec.exported(), chosen.loss()) {
        // The loss is then one of its layers.
        (Some(_), None) => sample,
        _ => sample.with_loss(targets, spec.loss()),
    };
    let mut options = ProfileOptions::new(&recipe.devices);
    options.precision = recipe.precision;
    options.kernels = kernels;
    options.threads_per_stage = recipe.threads_per_stage;
    options.seed = recipe.seed;
    let times = layer_times(&spec.build(), sample, &options).ok()?;
    let nanoseconds: Vec<u64> = times.iter().map(|own| (own * 1e3) as u64 + 1).collect();
    let cut = Partition::by_weight(&nanoseconds, stages).ok()?;
    let took = Micros::new(begun.elapsed().as_secs_f64() * 1e6).unwrap_or(Micros::ZERO);
    let said = format!(
        "cut by the times of the {}, measured in {took}; --balance takes another cut",
        count(times.len(), "layer")
    );
    Some((cut.balance(), said))
}
