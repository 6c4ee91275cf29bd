//! Flags that do not fit each other.

use std::path::Path;

use gpipe_partitioner::{ScheduleKind, Shape};

use super::Failure;
use super::device_options::check_memory;
use super::options::Args;
use super::recipe::Recipe;
use crate::cli::model::Chosen;
use crate::cli::output;
use crate::train::ReportFormat;

/// Checks the arguments against each other and the model.
pub(super) fn check(args: &Args, recipe: &Recipe, chosen: &Chosen) -> Result<(), Failure> {
    let checks = [micro(recipe), schedule(recipe), balance(recipe, chosen)];
    let checks = checks
        .into_iter()
        .chain([
            check_memory(&recipe.memory, &recipe.devices),
            recipe.check_offload(),
        ])
        .chain([layers(recipe, chosen), files(args)])
        .chain([recipe.optimizer_kind().check()]);
    let mut results = checks.filter_map(Result::err);
    match results.next() {
        Some(why) => Err(Failure::Usage(why)),
        None => Ok(()),
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

/// Whether there is such a schedule. The computed one takes any numbers, and time.
fn schedule(recipe: &Recipe) -> Result<(), String> {
    if recipe.schedule == ScheduleKind::Auto {
        return Ok(());
    }
    let shape = Shape::new(recipe.devices.len(), recipe.micro).with_chunks(recipe.chunks());
    let made = recipe.schedule.generate(shape);
    made.map_err(|error| format!("--schedule {}: {error}", recipe.schedule))?;
    Ok(())
}

fn balance(recipe: &Recipe, chosen: &Chosen) -> Result<(), String> {
    let Some(balance) = &recipe.balance else {
        return Ok(());
    };
    let (stages, wanted) = (balance.len(), recipe.stages());
    if stages != wanted {
        return Err(format!(
            "--balance names {stages} stages, but {}: give one number for each stage",
            arithmetic(recipe)
        ));
    }
    let add = |sum: usize, number: &usize| sum.saturating_add(*number);
    let sum = balance.iter().fold(0, add);
    if sum != chosen.layers() {
        return Err(format!(
            "--balance adds up to {sum} layers, but `{}` has {}",
            chosen.spec.name(),
            chosen.describe_layers()
        ));
    }
    Ok(())
}

/// Every stage has at least one layer.
fn layers(recipe: &Recipe, chosen: &Chosen) -> Result<(), String> {
    let stages = recipe.stages();
    if stages <= chosen.layers() {
        return Ok(());
    }
    let fewer = if recipe.chunks() > 1 {
        "fewer devices or chunks, another schedule"
    } else {
        "fewer devices"
    };
    let more = chosen
        .size_for(|layers| layers >= stages)
        .unwrap_or_else(|| "a model of more layers".to_owned());
    Err(format!(
        "{}, but `{}` has only {}: use {fewer}, or {more}",
        arithmetic(recipe),
        chosen.spec.name(),
        chosen.describe_layers(),
    ))
}

/// How the number of stages comes about.
fn arithmetic(recipe: &Recipe) -> String {
    let (devices, stages) = (recipe.devices.len(), recipe.stages());
    match (recipe.chunks, recipe.chunks()) {
        (_, 1) => format!("--devices makes {stages} stages"),
        (Some(chunks), _) => {
            format!("{devices} devices with --chunks {chunks} make {stages} stages")
        }
        (None, chunks) => format!(
            "{devices} devices with {chunks} chunks each (--schedule {}) make {stages} stages",
            recipe.schedule
        ),
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
