//! Flags that do not fit each other.

use std::path::Path;

use gpipe_partitioner::PartitionError;

use super::Failure;
use super::options::Args;
use super::recipe::Recipe;
use crate::cli::config::Schema;
use crate::cli::model::Chosen;
use crate::cli::output;
use crate::train::ReportFormat;
use crate::{Error, PipelineBuilder, Setting};

/// Checks the arguments against each other and the model, of which `builder` is to make a
/// pipeline.
pub(super) fn check(
    args: &Args,
    recipe: &Recipe,
    chosen: &Chosen,
    schema: &Schema<Recipe>,
    builder: &PipelineBuilder,
) -> Result<(), Failure> {
    micro(recipe)
        .and_then(|()| {
            let checked = builder.check();
            checked.map_err(|error| in_flags(&error, recipe, chosen, schema))
        })
        .and_then(|()| files(args))
        .and_then(|()| recipe.optimizer_kind().check())
        .map_err(Failure::Usage)
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

/// Why there can be no such pipeline, with the names of flags and the model, and what helps.
fn in_flags(error: &Error, recipe: &Recipe, chosen: &Chosen, schema: &Schema<Recipe>) -> String {
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
            "{} adds up to {covered} layers, but {} has {}",
            name(Setting::Balance),
            name(Setting::Model),
            chosen.describe_layers()
        ),
        Error::Partition(PartitionError::TooManyStages { stages, .. }) => {
            let more = chosen.size_for(|layers| layers >= *stages);
            format!(
                "{}, but {} has only {}: use {}, or {}",
                recipe.stage_count().named(&name),
                name(Setting::Model),
                chosen.describe_layers(),
                match recipe.chunks() {
                    1 => "fewer devices",
                    _ => "fewer devices or chunks, another schedule",
                },
                more.unwrap_or_else(|| "a model of more layers".to_owned())
            )
        }
        error => error.to_string(),
    }
}

/// What is written at the end can be told to fail before the beginning.
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
    // The run folder is yet to be made.
    if args.out.is_some() && args.out.as_deref() == path.parent() {
        return Ok(());
    }
    output::writable(path)
}
