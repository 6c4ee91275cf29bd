//! Flags that do not fit each other.

use std::path::Path;

use gpipe_partitioner::{ScheduleKind, Shape};

use super::Failure;
use super::options::Args;
use super::report::Format;

/// The most characters of a mini-batch: gigabytes of tokens alone are a slip.
const MAX_TOKENS: usize = 1 << 28;

/// Checks the arguments against each other.
pub(super) fn check(args: &Args) -> Result<(), Failure> {
    let checks = [sizes, schedule, balance, layers, files];
    checks
        .into_iter()
        .try_for_each(|check| check(args))
        .map_err(Failure::Usage)
}

fn sizes(args: &Args) -> Result<(), String> {
    let (d_model, heads) = (args.d_model, args.heads);
    if !d_model.is_multiple_of(heads) {
        return Err(format!(
            "--d-model {d_model} is not a multiple of --heads {heads}: heads share the features evenly"
        ));
    }
    if args.micro > args.batch {
        return Err(format!(
            "--micro {} is more than --batch {}: a micro-batch is at least one sequence",
            args.micro, args.batch
        ));
    }
    if args.batch.saturating_mul(args.seq) > MAX_TOKENS {
        return Err(format!(
            "--batch {} times --seq {} is more than {MAX_TOKENS} characters a step",
            args.batch, args.seq
        ));
    }
    Ok(())
}

/// Whether there is such a schedule. The computed one takes any numbers, and time.
fn schedule(args: &Args) -> Result<(), String> {
    if args.schedule == ScheduleKind::Auto {
        return Ok(());
    }
    let shape = Shape::new(args.devices.len(), args.micro).with_chunks(args.chunks());
    let made = args.schedule.generate(shape);
    made.map_err(|error| format!("--schedule {}: {error}", args.schedule))?;
    Ok(())
}

fn balance(args: &Args) -> Result<(), String> {
    let Some(balance) = &args.balance else {
        return Ok(());
    };
    let (stages, wanted) = (balance.len(), stages(args));
    if stages != wanted {
        return Err(format!(
            "--balance names {stages} stages, but {}: give one number for each stage",
            arithmetic(args)
        ));
    }
    let add = |sum: usize, number: &usize| sum.saturating_add(*number);
    let (layers, sum) = (args.model_layers(), balance.iter().fold(0, add));
    if sum != layers {
        return Err(format!(
            "--balance adds up to {sum} layers, but the model has {layers} ({} blocks, embedding and head)",
            args.layers
        ));
    }
    Ok(())
}

/// Every stage has at least one layer.
fn layers(args: &Args) -> Result<(), String> {
    let (layers, stages) = (args.model_layers(), stages(args));
    if stages <= layers {
        return Ok(());
    }
    let fewer = if args.chunks() > 1 {
        "fewer devices or chunks, another schedule"
    } else {
        "fewer devices"
    };
    Err(format!(
        "{}, but the model has only {layers} layers ({} blocks, embedding and head): use {fewer}, or --layers {}",
        arithmetic(args),
        args.layers,
        stages - 2
    ))
}

fn stages(args: &Args) -> usize {
    args.devices.len().saturating_mul(args.chunks())
}

/// How the number of stages comes about.
fn arithmetic(args: &Args) -> String {
    let (devices, stages) = (args.devices.len(), stages(args));
    match (args.chunks, args.chunks()) {
        (_, 1) => format!("--devices makes {stages} stages"),
        (Some(chunks), _) => {
            format!("{devices} devices with --chunks {chunks} make {stages} stages")
        }
        (None, chunks) => format!(
            "{devices} devices with {chunks} chunks each (--schedule {}) make {stages} stages",
            args.schedule
        ),
    }
}

/// What is written at the end can be told to fail before the beginning.
fn files(args: &Args) -> Result<(), String> {
    if let Some(path) = &args.report {
        Format::of(path).map_err(|why| format!("--report {}: {why}", path.display()))?;
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
    if path.is_dir() {
        return Err("this is a folder; give a file in it".to_owned());
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    match folder {
        // The run folder is yet to be made.
        Some(folder) if !folder.is_dir() && args.out.as_deref() != Some(folder) => Err(format!(
            "there is no folder {}; make it first",
            folder.display()
        )),
        _ => Ok(()),
    }
}
