//! `gpipe-rs profile`: measures a model's layers and plans a pipeline.

mod interrupt;
mod job;
mod options;
mod progress;
mod report;

use std::path::Path;
use std::time::Duration;

use gpipe_partitioner::words::quoted;
use gpipe_partitioner::{Bytes, Machine, Plan, PlanOptions, ScheduleKind, plan};
use tch::Device;

use super::plan::{choices, limit};
use super::{Failure, output, say, simulated};
use crate::titled_lines::Said;
use gpipe_data::Diagnosis;
use gpipe_decide::reserve;
use gpipe_models::zoo::Zoo;
use gpipe_torch::memory::room_on;
use gpipe_torch::{Kernels, ProfileOptions, Profiled, profile_watched};

pub(super) use options::Args;

use interrupt::Interrupt;
use job::Job;
use progress::Progress;
use report::Loading;

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    let job = Job::new(args, zoo)?;
    let options = profile_options(args, &job.micro_sizes);
    let (model, sample) = job.sample()?;
    gpipe_torch::prepare(&args.devices).map_err(|error| Failure::Usage(error.to_string()))?;
    say(&report::beginning(job.spec(), &options)?);
    // The default.
    if args.devices[..] == [Device::Cpu; 2] {
        simulated::unused(&args.devices)
            .iter()
            .for_each(|note| say(note));
    }
    if let Some(vocabulary) = job.vocabulary() {
        say(&vocabulary);
    }
    let progress = Progress::new(model.names());
    let interrupt = Interrupt::listen(&progress);
    let measured = profile_watched(&model, &sample, &options, |at| progress.tell(at));
    drop(interrupt);
    progress.finish();
    let mut measured = measured.map_err(super::failure)?;
    measured.profile = (measured.profile)
        .with_model(job.model_id())
        .with_fewest_samples(job.fewest);
    for doubt in &measured.doubts {
        say(&format!("note: {doubt}"));
    }
    if args.data.is_some() {
        say("measuring how long a batch of --data takes to load");
    }
    let loading = job.loading()?;
    let spec = job.spec().clone();
    let plan_options = with_measured(job.options, &measured);
    let written = write(args.output.as_deref(), &measured.profile.to_json());
    let planned = plan(&measured.profile, &plan_options).map_err(super::plan::failure);
    // Written even if no plan fits, as the measurements are done.
    written?;
    let (profile, plan_options, plan) =
        super::plan::chosen(measured.profile, plan_options, planned?);
    measured.profile = profile;
    for note in super::plan::notes(&measured.profile, &plan, &plan_options) {
        say(&note);
    }
    write(args.plan.as_deref(), &plan.to_json())?;
    let diagnosis = loading
        .as_ref()
        .and_then(|own| own.beside(&measured, &plan));
    let input = diagnosis.as_ref().and_then(report::input);
    let limit = limit::sentence(&measured.profile, &plan, &plan_options, input.as_ref());
    let choices = choices::said(&measured.profile, &plan, &plan_options);
    if let Some(path) = &args.report {
        let notes = (limit.as_str(), choices.as_slice());
        let page = report::page(&spec, &measured, &plan, &plan_options, notes)?;
        output::write(Some(path), &page)?;
    }
    let mut said = vec![Said::new("limit", limit.clone())];
    said.extend(reserved(args));
    said.extend(choices);
    said.push(next(args));
    let found = (loading.as_ref(), diagnosis.as_ref());
    print(args, &measured, &plan, (&said, &limit), found)
}

/// The next step for the user.
fn next(args: &Args) -> Said {
    let text = match (&args.plan, &args.output) {
        (Some(plan), _) => format!(
            "`gpipe-rs train --plan {}{}`",
            quoted(plan),
            args.beyond_the_plan()
        ),
        (None, Some(file)) => format!(
            "`gpipe-rs plan --profile {}` plans for other devices",
            quoted(file)
        ),
        (None, None) => "add --plan plan.json to keep the plan; `gpipe-rs train --plan plan.json` \
                         follows it"
            .to_owned(),
    };
    Said::new("next", text)
}

fn print(
    args: &Args,
    measured: &Profiled,
    plan: &Plan,
    (said, limit): (&[Said], &str),
    found: (Option<&Loading>, Option<&Diagnosis>),
) -> Result<(), Failure> {
    if args.json {
        let report = report::json(measured, plan, found, limit)?;
        return output::print(&output::json(&report));
    }
    if args.prints_data() {
        return Ok(());
    }
    let text = report::text(measured, (plan, args.batch), found, (said, limit));
    output::print(&text)
}

fn write(path: Option<&Path>, text: &str) -> Result<(), Failure> {
    match path {
        Some(path) => output::write(Some(path), text),
        None => Ok(()),
    }
}

fn profile_options(args: &Args, sizes: &[usize]) -> ProfileOptions {
    let mut options = ProfileOptions::new(&args.devices);
    if args.quick {
        options = options.quick();
    }
    if let Some(budget) = args.budget {
        options.budget = Duration::from_millis(budget as u64);
    }
    options.sizes = sizes.to_vec();
    options.precision = args.precision;
    let on_cpus = args.devices.contains(&Device::Cpu);
    let auto = || on_cpus.then(Kernels::auto).unwrap_or_default();
    options.kernels = args.kernels.unwrap_or_else(auto);
    options.low_memory = args.low_memory;
    options.threads_per_stage = args.threads_per_stage;
    options
}

fn machine(args: &Args) -> Result<Machine, Failure> {
    let memory = memory(args)?;
    let machine = Machine::new(args.devices.len()).and_then(|machine| match &memory {
        Some(memory) => machine.with_memory(memory),
        None => Ok(machine),
    });
    machine.map_err(|error| Failure::Usage(error.to_string()))
}

/// Returns the memory that the plan may use of each device; `None` without limits, as for CPU devices.
fn memory(args: &Args) -> Result<Option<Vec<Bytes>>, Failure> {
    let is_card = args.memory.is_none();
    let all = args.memory.clone().or_else(|| cards(args));
    args.reserve.check(all.is_some())?;
    let Some(all) = all else {
        return Ok(None);
    };
    let left = all.into_iter().map(|own| args.reserve.left(own, is_card));
    left.collect::<Result<_, _>>().map(Some)
}

/// Returns the memory of each GPU, divided among its stages; `None` if unknown.
fn cards(args: &Args) -> Option<Vec<Bytes>> {
    let devices = &args.devices;
    let each = devices.iter().map(|device| {
        let (_, memory) = room_on(*device).ok().filter(|_| device.is_cuda())?;
        let stages = devices.iter().filter(|own| *own == device).count();
        Some(Bytes(memory.get() / stages as u64))
    });
    each.collect()
}

/// Describes the memory kept free on the device with the largest reserve; `None` if there is none.
fn reserved(args: &Args) -> Option<Said> {
    let is_card = args.memory.is_none();
    let all = args.memory.clone().or_else(|| cards(args))?;
    let reserve = all
        .into_iter()
        .map(|own| args.reserve.of(own, is_card))
        .max()?;
    (reserve > Bytes::ZERO).then(|| Said::new("memory", reserve::sentence(reserve)))
}

/// Returns the options of the plan, except the link.
fn plan_options(args: &Args, micro: Option<usize>) -> Result<PlanOptions, Failure> {
    let mut options = PlanOptions::new(machine(args)?);
    options.micro_batches = micro;
    options.batch = Some(args.batch);
    options.schedule = Some(args.schedule).filter(|&kind| kind != ScheduleKind::Auto);
    options.chunks = args.chunks;
    options.recompute = args.recompute;
    options.offload = args.offload;
    options.cuda_graphs = args.cuda_graphs;
    Ok(options)
}

/// Adds measured facts about the devices.
fn with_measured(mut options: PlanOptions, measured: &Profiled) -> PlanOptions {
    if let Some(cores) = measured.cores {
        options.machine = options.machine.with_cores(cores);
    }
    if let Some(link) = measured.link {
        options.machine = options.machine.with_link(link.link());
    }
    if let Some(link) = measured.profile.host_link() {
        options.machine = options.machine.with_host_link(link);
    }
    options
}
