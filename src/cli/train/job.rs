//! A training job: the recipe, its model and its data.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use gpipe_partitioner::Plan;
use gpipe_partitioner::words::count;
use tch::Device;

use super::configured::Saved;
use super::leader_choices::decided;
use super::options::Args;
use super::recipe::Recipe;
use super::{
    check, config, configured, few_samples, from_plan, memory_check, missing_data, resumed,
    usual_values,
};
use crate::config::{Origin, Origins, Schema};
use crate::feed::{self, DataOptions, EvalData, HeldOut, Source};
use crate::model::{Chosen, exported};
use crate::trained::initial::{self, Weights};
use crate::vocabulary::ModelTokenizer;
use crate::{Failure, failure, input, simulated};
use gpipe_models::zoo::{ModelSpec, Zoo};
use gpipe_torch::world::World;
use gpipe_torch::{LrSchedule, Optimizer, Pipeline, PipelineBuilder, simulated_gpus, time_model};
use gpipe_train::peak_flops;

/// A fully configured run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) args: Args,
    /// The recipe, with the plan's decisions applied.
    pub(super) recipe: Recipe,
    /// Choices made by default, with reasons.
    pub(super) said: Vec<String>,
    /// Notes about settings that a higher layer of the configuration made invalid.
    pub(super) notes: Vec<String>,
    pub(super) zoo: Zoo,
    pub(super) chosen: Chosen,
    pub(super) source: Source,
    /// Separate evaluation data.
    pub(super) other: Option<EvalData>,
    pub(super) plan: Option<Plan>,
    /// Learning-rate schedule.
    pub(super) rates: LrSchedule,
    /// Operations per sample, and peak operations per second of all devices, if both are known.
    pub(super) flops: Option<(f64, f64)>,
    /// Initial weights, if not random.
    pub(super) weights: Option<Weights>,
    /// Tokenizer, if tokens are not characters.
    pub(super) tokenizer: Option<Arc<ModelTokenizer>>,
    /// Tokens per sample, if samples are token sequences.
    pub(super) tokens: Option<usize>,
    /// The processes that train together; `None` for a single process.
    pub(super) world: Option<Arc<World>>,
}

/// Reads the initial weights; model and sizes are taken from them unless given.
fn of_weights(
    recipe: Recipe,
    path: &Path,
    origins: &Origins,
    zoo: &Zoo,
) -> Result<(Recipe, Option<Weights>), Failure> {
    let asked = (recipe.model.as_str(), &recipe.sizes);
    let ((model, sizes), weights) = initial::read(path, asked, origins, zoo)?;
    let recipe = Recipe {
        model,
        sizes,
        ..recipe
    };
    Ok((recipe, Some(weights)))
}

impl Job {
    /// Checks everything possible before anything is built, on top of a resumed run's configuration.
    pub(super) fn over(
        below: Option<&Saved>,
        args: &Args,
        zoo: &Zoo,
        world: Option<&Arc<World>>,
    ) -> Result<Self, Failure> {
        let processes = world.map_or(1, |world| world.size());
        let (recipe, mut origins) = configured::recipe(args, zoo, below, processes)?;
        let recipe = recut(recipe, &mut origins);
        let recipe = nothing_held_out(recipe, &origins);
        let trained = below.is_some_and(|saved| saved.trained);
        let (recipe, weights) = match recipe.weights.clone().filter(|_| !trained) {
            Some(path) => of_weights(recipe, &path, &origins, zoo)?,
            None => (recipe, None),
        };
        let (recipe, plan) = from_plan::planned(recipe, &origins, zoo)?;
        let loss = recipe.asked_loss();
        let there = exported::check_there(&recipe.model, recipe.fingerprint.as_deref());
        there.map_err(Failure::Usage)?;
        let chosen = Chosen::new(zoo, &recipe.model, &recipe.sizes, loss)?;
        chosen.check_trains().map_err(Failure::Usage)?;
        let same = exported::check_same(&chosen.spec, recipe.fingerprint.as_deref());
        same.map_err(Failure::Usage)?;
        let recipe = match &plan {
            Some(plan) => on_its_devices(recipe, plan, &origins, processes),
            None => recipe,
        };
        let (recipe, mut said) =
            usual_values::filled(recipe, &origins, &chosen, weights.is_some())?;
        let recipe = match &plan {
            Some(plan) => from_plan::applied(&recipe, plan, &chosen)?,
            None => recipe,
        };
        let schema = config::schema(zoo);
        let builder = builder(&recipe, &chosen, &schema, (plan.as_ref(), world))?;
        check::check(args, (&recipe, &origins), &chosen, &schema, &builder)?;
        if recipe.replicas == 1 {
            let fits = chosen.check_micro(recipe.batch, recipe.micro);
            fits.map_err(Failure::Usage)?;
        }
        feed::check_batch(&chosen.spec, recipe.batch).map_err(Failure::Usage)?;
        let tokenizer = tokenizer(below, &recipe, weights.as_ref())?;
        if let Some(weights) = &weights {
            weights.check_tokenizer(tokenizer.as_deref())?;
        }
        let options = DataOptions {
            kept: below.and_then(|saved| saved.samples.clone()),
            ..recipe.data_options()
        };
        if let Some(saved) = below {
            resumed::check_data(saved, &recipe)?;
        }
        let (chosen, source) = Source::choose(
            chosen,
            recipe.data.as_deref(),
            tokenizer.as_deref(),
            &options,
        )
        .map_err(|failure| missing_data::data(failure, recipe.data.as_deref(), &origins))?;
        source.check_batch(recipe.batch).map_err(Failure::Usage)?;
        let recipe = in_steps(recipe, &source, &origins).map_err(Failure::Usage)?;
        let rates = recipe.learning_rates().map_err(failure)?;
        let other =
            other(&recipe, (&chosen, &source), tokenizer.as_deref()).map_err(|failure| {
                missing_data::eval_data(failure, recipe.eval_data.as_deref(), &origins)
            })?;
        if let Some(weights) = &weights {
            weights.check(&source)?;
        }
        memory_check::check(&recipe, &chosen.spec)?;
        let named_devices = origins.of("pipeline.devices").is_some();
        let mut notes = origins.notes;
        notes.extend(plan.iter().flat_map(|plan| chosen.notes_of_plan(plan)));
        let tokens = feed::tokens(&chosen.spec);
        let flops = flops(&recipe, &chosen.spec, tokens)?;
        // The peak is per process.
        let flops = flops.map(|(sample, peak)| (sample, peak * processes as f64));
        notes.extend(weights.as_ref().and_then(|own| own.note.clone()));
        notes.extend(exported::note_of_gradients(&chosen.spec));
        notes.extend(idle(&recipe));
        notes.extend(few_samples::note(&recipe, &chosen.spec)?);
        notes.extend(check::patience(&recipe));
        let held_out = held_out(&recipe, &chosen, (&source, other.as_ref()));
        check::evaluations(&recipe, held_out.as_ref(), &source).map_err(Failure::Usage)?;
        notes.extend(held_out.and_then(|own| left_out(&recipe, &chosen, own)));
        let (recipe, cut) = decided(recipe, &chosen, world)?;
        said.extend(cut);
        if !named_devices {
            said.extend(simulated::unused(&recipe.devices));
        }
        Ok(Self {
            other,
            tokens,
            args: args.clone(),
            recipe,
            said,
            notes,
            zoo: zoo.clone(),
            chosen,
            source,
            plan,
            rates,
            flops,
            weights,
            tokenizer,
            world: world.map(Arc::clone),
        })
    }

    /// Returns the settings of the simulated GPUs; `None` on other devices.
    pub(super) fn simulated_gpus(&self) -> Option<String> {
        let gpus = self.recipe.devices.iter().any(|device| device.is_cuda());
        gpus.then(simulated_gpus).flatten()
    }

    /// Explains the simulation, for readers of its figures.
    pub(super) fn simulation(&self) -> Option<String> {
        let settings = self.simulated_gpus()?;
        let meaning = match time_model() {
            Some(model) => format!(
                "nothing is computed (the numbers are zeros), and times are those of a model of \
                 {model}"
            ),
            None => "the numbers are the CPU's, and times and memory are no GPU's".to_owned(),
        };
        Some(format!("on simulated GPUs ({settings}): {meaning}"))
    }

    /// Returns the held-out data, if any of it is measured.
    pub(super) fn held_out(&self) -> Option<HeldOut<'_>> {
        let from = (&self.source, self.other.as_ref());
        let held_out = held_out(&self.recipe, &self.chosen, from)?;
        let (left_out, all) = held_out.left_out();
        (left_out < all).then_some(held_out)
    }

    /// Builds the pipeline.
    pub(super) fn pipeline(&self) -> Result<Pipeline, Failure> {
        let schema = config::schema(&self.zoo);
        let others = (self.plan.as_ref(), self.world.as_ref());
        let builder = builder(&self.recipe, &self.chosen, &schema, others)?;
        builder.build().map_err(failure)
    }

    pub(super) fn optimizer(&self) -> Result<Optimizer, Failure> {
        let recipe = &self.recipe;
        let kind = recipe.optimizer_kind();
        let optimizer = Optimizer::new(kind).offload(recipe.offload_optimizer);
        if recipe.decay_1d {
            return Ok(optimizer);
        }
        let variables = self.chosen.spec.build().distinct_variables()?;
        let flat = variables.iter().filter(|own| own.shape().len() < 2);
        let flat: BTreeSet<String> = flat.map(|own| own.name().to_owned()).collect();
        let mut plain = kind;
        plain.set_number("weight_decay", 0.0);
        Ok(optimizer.group(move |name| flat.contains(name), plain))
    }
}

/// Recuts a run resumed in another number of processes: each adds its devices, so the number of stages
/// differs from the configuration's.
fn recut(recipe: Recipe, origins: &mut Origins) -> Recipe {
    let stages = recipe.stages();
    let saved = matches!(origins.of("pipeline.balance"), Some(Origin::File { .. }));
    let other = recipe
        .balance
        .as_ref()
        .is_some_and(|own| own.len() != stages);
    if !(recipe.resuming && saved && other) {
        return recipe;
    }
    origins.notes.push(format!(
        "the run was cut into other stages than the {stages} that there are: they are balanced anew"
    ));
    Recipe {
        balance: None,
        ..recipe
    }
}

/// Chooses devices for a plan if none are named: CUDA devices if there are enough, or fewer CPU devices
/// than the default, for one stage with all cores. A plan for more CPU devices may be meant for other
/// devices.
fn on_its_devices(recipe: Recipe, plan: &Plan, origins: &Origins, processes: usize) -> Recipe {
    let devices = plan.devices() * plan.replicas;
    if origins.of("pipeline.devices").is_some() {
        return recipe;
    }
    let gpus = || gpipe_torch::cuda_available().unwrap_or(0);
    if plan.device.is_some() && processes == 1 && gpus() >= devices {
        let devices = (0..devices).map(Device::Cuda).collect();
        return Recipe { devices, ..recipe };
    }
    if devices >= recipe.all_devices() || !devices.is_multiple_of(processes) {
        return recipe;
    }
    Recipe {
        devices: vec![Device::Cpu; devices / processes],
        ..recipe
    }
}

/// Returns the tokenizer of the checkpoint, the configuration or the weights, whichever is found first.
fn tokenizer(
    below: Option<&Saved>,
    recipe: &Recipe,
    weights: Option<&Weights>,
) -> Result<Option<Arc<ModelTokenizer>>, Failure> {
    if let Some(saved) = below.and_then(|saved| saved.tokenizer.clone()) {
        return Ok(Some(saved));
    }
    if let Some(path) = &recipe.tokenizer {
        let read = ModelTokenizer::read(path);
        let read = read.map_err(|why| input::in_file("--tokenizer", path, why))?;
        return Ok(Some(read));
    }
    weights.map_or(Ok(None), Weights::tokenizer)
}

/// Notes about requested settings without effect on these devices.
fn idle(recipe: &Recipe) -> impl Iterator<Item = String> {
    let has_cuda = recipe.devices.iter().any(|device| device.is_cuda());
    let tf32 = (recipe.tf32 && !has_cuda).then_some(
        "pipeline.tf32 = true does nothing here: it is for CUDA devices, and there is none",
    );
    let shard = (recipe.shard_optimizer && recipe.replicas == 1).then_some(
        "parallel.shard_optimizer = true does nothing here: replicas share what the optimizer \
         remembers, and there is 1 (--replicas)",
    );
    let own = tf32.into_iter().chain(shard).map(str::to_owned);
    let own = own.chain(recipe.warm_up_without_end());
    own.chain(recipe.evaluated_at_the_end())
}

/// Converts epochs to steps of whole mini-batches, unless a higher layer gives steps.
fn in_steps(recipe: Recipe, source: &Source, origins: &Origins) -> Result<Recipe, String> {
    let Some(epochs) = recipe.epochs else {
        return Ok(recipe);
    };
    let [of_steps, own] = ["train.steps", "train.epochs"].map(|key| origins.layer(key));
    if of_steps > own {
        return Ok(Recipe {
            epochs: None,
            ..recipe
        });
    }
    if let (true, Some(place)) = (of_steps == own, origins.of("train.epochs")) {
        return Err(format!(
            "{place}: train.steps and train.epochs both say how long to train: leave one of them out"
        ));
    }
    let Some(samples) = source.epoch() else {
        return Err(format!(
            "--epochs {epochs}: {} data has no end: say with --steps N how long to train",
            source.name()
        ));
    };
    let steps = epochs * (samples / recipe.batch).max(1) as f64;
    Ok(Recipe {
        steps: (steps.ceil() as usize).max(1),
        epochs: None,
        ..recipe
    })
}

/// Holds nothing out of `--data` if there is separate evaluation data, unless a share is given
/// explicitly.
fn nothing_held_out(recipe: Recipe, origins: &Origins) -> Recipe {
    if recipe.eval_data.is_none() || origins.of("data.held_out").is_some() {
        return recipe;
    }
    Recipe {
        held_out: 0.0,
        ..recipe
    }
}

/// Reads separate evaluation data.
fn other(
    recipe: &Recipe,
    of: (&Chosen, &Source),
    tokenizer: Option<&ModelTokenizer>,
) -> Result<Option<EvalData>, Failure> {
    let Some(path) = &recipe.eval_data else {
        return Ok(None);
    };
    let read = EvalData::read(path, of, tokenizer, &recipe.data_options());
    let read = read.map_err(|why| format!("--eval-data {}: {why}", path.display()));
    read.map(Some).map_err(Failure::Usage)
}

/// Returns the held-out data in batches that the model takes.
fn held_out<'a>(
    recipe: &Recipe,
    chosen: &Chosen,
    (source, other): (&'a Source, Option<&'a EvalData>),
) -> Option<HeldOut<'a>> {
    let takes = |samples: usize| match (recipe.replicas, chosen.spec.exported()) {
        (1, _) | (_, None) => exported::takes(&chosen.spec, samples, recipe.micro),
        // Replicas have no larger micro-batches than a whole batch.
        (_, Some(model)) => *model.micro_batch_sizes().start() == 1,
    };
    // A single evaluation at the end should take only part of the training time.
    let once = (recipe.eval_every == 0).then_some(recipe.steps);
    let (batch, most) = (recipe.batch, recipe.held_out_batches.or(once));
    match other {
        Some(other) => other.batches(batch, most, takes),
        None => source.held_out(batch, most, takes),
    }
}

/// Notes the number of held-out samples that are not measured.
fn left_out(recipe: &Recipe, chosen: &Chosen, held_out: HeldOut<'_>) -> Option<String> {
    let (left_out, all) = held_out.left_out();
    let why = format!(
        "`{}` takes no micro-batches as small as a rest makes: {}",
        chosen.spec.name(),
        exported::smaller(&chosen.spec)
    );
    match left_out {
        0 => None,
        left_out if left_out == all => Some(format!(
            "the held-out loss is not measured: {} {} no --batch of {}, and {why}",
            count(all, "sample"),
            if all == 1 { "fills" } else { "fill" },
            recipe.batch
        )),
        left_out => Some(format!(
            "{left_out} of {all} held-out samples {} no --batch of {}, and {why}",
            if left_out == 1 {
                "is not measured, as it fills"
            } else {
                "are not measured, as they fill"
            },
            recipe.batch
        )),
    }
}

/// Configures the pipeline builder.
fn builder(
    recipe: &Recipe,
    chosen: &Chosen,
    schema: &Schema<Recipe>,
    (plan, world): (Option<&Plan>, Option<&Arc<World>>),
) -> Result<PipelineBuilder, Failure> {
    let builder = schema.apply(Pipeline::builder(chosen.spec.build()), recipe);
    let builder = match world {
        Some(world) => builder.world(world),
        None => builder,
    };
    match plan {
        Some(plan) => builder.plan(plan).map_err(failure),
        None => Ok(builder),
    }
}

/// Returns operations per sample and peak operations per second, if both are known.
fn flops(
    recipe: &Recipe,
    spec: &ModelSpec,
    tokens: Option<usize>,
) -> anyhow::Result<Option<(f64, f64)>> {
    let peak = peak_flops(&recipe.devices, recipe.precision, recipe.peak_flops);
    let of_sample = match (peak, recipe.flops_per_sample, tokens) {
        (Some(_), None, Some(tokens)) => Some(spec.flops_per_sequence(tokens)?),
        (_, own, _) => own,
    };
    Ok(of_sample.zip(peak))
}
