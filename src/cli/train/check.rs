//! Checks flags for conflicts.

use std::path::Path;

use gpipe_partitioner::PartitionError;
use gpipe_partitioner::words::count;

use super::Failure;
use super::options::Args;
use super::recipe::Recipe;
use crate::config::{Origin, Origins, Schema};
use crate::feed::{HeldOut, Source};
use crate::model::Chosen;
use crate::output;
use gpipe_torch::{Error, PipelineBuilder, Setting};
use gpipe_train::ReportFormat;

/// Checks the arguments against each other and against the model; `builder` is the pipeline's.
pub(super) fn check(
    args: &Args,
    (recipe, origins): (&Recipe, &Origins),
    chosen: &Chosen,
    schema: &Schema<Recipe>,
    builder: &PipelineBuilder,
) -> Result<(), Failure> {
    micro(recipe)
        .and_then(|()| skipping(recipe))
        .and_then(|()| {
            let checked = builder.check();
            checked.map_err(|error| in_flags(&error, (recipe, origins), chosen, schema))
        })
        .and_then(|()| files(args))
        .and_then(|()| recipe.optimizer_kind().check())
        .map_err(Failure::Usage)
}

/// A smaller limit in seconds is hardly meant as a limit of an action.
const IMPATIENT: f64 = 60.0;

/// Notes the meaning of `--patience`, where early stopping may be meant.
pub(super) fn patience(recipe: &Recipe) -> Option<String> {
    let seconds = recipe
        .patience
        .filter(|own| *own > 0.0 && *own < IMPATIENT)?;
    Some(format!(
        "note: with --patience {seconds} an action of a stage that takes longer than {seconds} s ends the \
         run with an error; to stop after evaluations without a better one, write --early-stopping N"
    ))
}

/// Checks that there is data to evaluate on and evaluations to count, if requested.
pub(super) fn evaluations(
    recipe: &Recipe,
    held_out: Option<&HeldOut<'_>>,
    source: &Source,
) -> Result<(), String> {
    let every = recipe.eval_every;
    if every == 0 {
        return match recipe.early_stopping {
            0 => Ok(()),
            count => Err(format!(
                "--early-stopping {count} counts evaluations: say with --eval-every N after how many \
                 steps there is one"
            )),
        };
    }
    let none = |why: &str| Err(format!("--eval-every {every}: {why}"));
    match held_out.map(HeldOut::left_out) {
        Some((left_out, all)) if left_out < all => Ok(()),
        Some(_) => none("what is held out does not make a batch that the model takes"),
        None if recipe.held_out_batches == Some(0) => none("--held-out-batches 0 measures none"),
        None if matches!(source, Source::Synthetic(_)) => {
            none("of made-up data nothing is held out: name some with --data")
        }
        None if recipe.held_out > 0.0 => none(
            "nothing is held out, as the share of --held-out is less than one sample: take a larger \
             one, or --eval-data PATH",
        ),
        None => none("nothing is held out: take a --held-out above 0, or --eval-data PATH"),
    }
}

fn micro(recipe: &Recipe) -> Result<(), String> {
    if recipe.micro > recipe.batch {
        return Err(format!(
            "--micro {} is more than --batch {}: a micro-batch is at least one sample",
            recipe.micro, recipe.batch
        ));
    }
    Ok(())
}

/// Rejects skipping with several processes: a file unreadable in one may be readable in another, and
/// their batches would differ.
fn skipping(recipe: &Recipe) -> Result<(), String> {
    match recipe.skip_bad {
        bad if bad > 0 && recipe.processes > 1 => Err(format!(
            "data.skip_bad = {bad} is for one process: take what cannot be read out of the data"
        )),
        _ => Ok(()),
    }
}

/// Explains why a pipeline is impossible, in terms of flags and the model, and what helps.
fn in_flags(
    error: &Error,
    (recipe, origins): (&Recipe, &Origins),
    chosen: &Chosen,
    schema: &Schema<Recipe>,
) -> String {
    let name = |setting: Setting| match (setting, schema.flag_of(setting)) {
        (_, Some(flag)) => flag.to_owned(),
        (Setting::Model, None) => format!("`{}`", chosen.spec.name()),
        (other, None) => other.name().to_owned(),
    };
    match error {
        Error::Settings(error) => error.named(&name),
        Error::Schedule(error) => {
            format!("{} {}: {error}", name(Setting::Schedule), recipe.schedule)
        }
        Error::Partition(
            PartitionError::TooFew { covered, .. } | PartitionError::TooMany { covered, .. },
        ) => format!(
            "{} adds up to {covered}, but {} has {}",
            name(Setting::Balance),
            name(Setting::Model),
            chosen.describe_layers(),
            covered = count(*covered, "layer")
        ),
        Error::Partition(PartitionError::TooManyStages { stages: wanted, .. }) => {
            let (stages, layers) = (recipe.stage_count().named(&name), chosen.describe_layers());
            let model = name(Setting::Model);
            // Values from a file were not typed as flags.
            let chunks = match origins.of("pipeline.chunks") {
                Some(origin @ Origin::File { .. }) => format!(" (chunks: {origin})"),
                _ => String::new(),
            };
            format!(
                "{stages}{chunks}, but {model} has only {layers}: use {}",
                fewer_stages(recipe, chosen, *wanted)
            )
        }
        error => error.to_string(),
    }
}

/// Advice for more stages than layers. The sizes of a resumed run cannot change.
fn fewer_stages(recipe: &Recipe, chosen: &Chosen, wanted: usize) -> String {
    let fewer = match recipe.chunks() {
        1 => "fewer devices",
        _ => "fewer devices or chunks, another schedule",
    };
    if recipe.resuming {
        return fewer.replace(", another", ", or another");
    }
    let more = chosen.size_for(|layers| layers >= wanted);
    let more = more.unwrap_or_else(|| "a model of more layers".to_owned());
    format!("{fewer}, or {more}")
}

/// Checks early that files can be written at the end.
fn files(args: &Args) -> Result<(), String> {
    if let Some(path) = &args.report {
        ReportFormat::of(path).map_err(|why| format!("--report {}: {why}", path.display()))?;
    }
    for (flag, path) in [("--trace", &args.trace), ("--report", &args.report)] {
        if let Some(path) = path {
            writable(args, path).map_err(|why| format!("{flag} {}: {why}", path.display()))?;
        }
    }
    if args.trace.is_some() && args.trace == args.report {
        return Err("--trace and --report name the same file: give each its own".to_owned());
    }
    Ok(())
}

fn writable(args: &Args, path: &Path) -> Result<(), String> {
    if path == Path::new("-") {
        return Err("standard output has the summary; give a file".to_owned());
    }
    // The run folder is not made yet.
    if args.out.is_some() && args.out.as_deref() == path.parent() {
        return Ok(());
    }
    output::writable(path)
}
