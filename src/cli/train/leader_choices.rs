//! Decisions measured on one machine for all processes of a run: the CPU kernels, and the balance of
//! layers.

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

/// Rank 0's decisions, as sent to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Decided {
    kernels: String,
    balance: Option<Vec<usize>>,
    said: Option<String>,
}

/// Sets the kernels and the balance of a recipe as rank 0 decides, unless given; returns a message
/// about it. All processes call this.
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

/// Returns the faster kernels for this machine. Runs from before there was a choice used libtorch's.
fn kernels(recipe: &Recipe) -> Kernels {
    if recipe.resuming || !recipe.devices.contains(&Device::Cpu) {
        return Kernels::Libtorch;
    }
    Kernels::auto()
}

/// Balances layers by measured time where parameters are no guide; returns the balance and a message.
/// `None` also if a layer fails: training then fails with a better message.
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
        // Then the loss is one of its layers.
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
