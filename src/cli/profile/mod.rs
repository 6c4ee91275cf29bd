//! `gpipe-rs profile`: what a model's layers cost here, and how to run it then.

mod html;
mod models;
mod options;
mod report;

use std::path::Path;
use std::time::Duration;

use gpipe_partitioner::{Machine, Plan, PlanOptions, ScheduleKind, plan};

use super::plan::limit;
use super::{Failure, output, say};
use crate::{ProfileOptions, Profiled, profile};

pub(super) use options::Args;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    super::train::silence_caught_panics();
    args.check()?;
    let machine = machine(args)?;
    let (sizes, options) = (args.sizes(), profile_options(args));
    let largest = sizes.iter().copied().max().unwrap_or(1);
    let (model, sample) = models::build(args, largest)?;
    say(&format!(
        "measuring {}: {} layers at micro-batches of {sizes:?} samples, for at most about {}",
        args.model.name(),
        model.len(),
        report::at_most(options.budget, model.len(), sizes.len()),
    ));
    let measured = profile(&model, &sample, &options).map_err(super::train::failure)?;
    for doubt in &measured.doubts {
        say(&format!("note: {doubt}"));
    }
    let plan_options = plan_options(args, machine, &measured);
    let written = write(args.output.as_deref(), &measured.profile.to_json());
    let plan = plan(&measured.profile, &plan_options).map_err(super::plan::failure);
    // Also where no plan fits: the measurements are done.
    written?;
    let plan = plan?;
    write(args.plan.as_deref(), &plan.to_json())?;
    print(args, &measured, &plan, &plan_options)
}

fn print(
    args: &Args,
    measured: &Profiled,
    plan: &Plan,
    options: &PlanOptions,
) -> Result<(), Failure> {
    let limit = limit::sentence(&measured.profile, plan, options);
    html::write(args, measured, plan, options, &limit)?;
    if args.json {
        return output::print(&output::json(&report::json(measured, plan, &limit)?));
    }
    if args.prints_data() {
        return Ok(());
    }
    output::print(&report::text(measured, plan, &limit))?;
    say(&format!("{} of parameters", report::parameters(measured)));
    Ok(())
}

fn write(path: Option<&Path>, text: &str) -> Result<(), Failure> {
    match path {
        Some(path) => output::write(Some(path), text),
        None => Ok(()),
    }
}

fn profile_options(args: &Args) -> ProfileOptions {
    let mut options = ProfileOptions::new(&args.devices);
    if args.quick {
        options = options.quick();
    }
    if let Some(budget) = args.budget {
        options.budget = Duration::from_millis(budget as u64);
    }
    options.sizes = args.sizes();
    options.low_memory = args.low_memory;
    options.threads_per_stage = args.threads_per_stage;
    options
}

fn machine(args: &Args) -> Result<Machine, Failure> {
    let machine = Machine::new(args.devices.len()).and_then(|machine| match &args.memory {
        Some(memory) => machine.with_memory(memory),
        None => Ok(machine),
    });
    machine.map_err(|error| Failure::Usage(error.to_string()))
}

fn plan_options(args: &Args, machine: Machine, measured: &Profiled) -> PlanOptions {
    let mut options = PlanOptions::new(match measured.link {
        Some(link) => machine.with_link(link.link()),
        None => machine,
    });
    options.micro_batches = args.micro;
    options.batch = Some(args.batch);
    options.schedule = Some(args.schedule).filter(|&kind| kind != ScheduleKind::Auto);
    options.chunks = args.chunks;
    options.recompute = args.recompute;
    options
}
