//! `gpipe-rs plan`: chooses how to run a profiled model on given devices.

pub mod choices;
mod cluster;
mod cluster_answers;
pub mod limit;
mod notes;
pub mod page;
pub mod report;
pub mod runners_up;
mod shape;
mod simpler_plan;
mod single_stage;
mod work;

use std::path::{Path, PathBuf};

use gpipe_partitioner::words::quoted;
use gpipe_partitioner::{
    Bytes, Cluster, ClusterOptions, Cores, HostLink, Link, Machine, MachineError, Plan, PlanError,
    PlanOptions, Profile, ScheduleKind, When, plan, plan_cluster, simulate, too_large, what_more,
    what_more_devices,
};

use cluster::ClusterFlags;
pub use notes::notes;
use notes::without_batch;
use runners_up::Shown;
use shape::ShapeFlags;

use super::names::heading::{MACHINES, MODEL, OUTPUT, PIPELINE, TRAINING};
use super::replica_node_flags::ReplicaNodeFlags;
use super::reserve::{self, Reserve};
use super::slow_notice::SlowNotice;
use super::titled_lines::{self, Said};
use super::{Failure, input, output, say};

/// Arguments of `gpipe-rs plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:
  gpipe-rs plan --profile profile.json --devices 8 --memory 24GiB --link 25GB/s,5us
  gpipe-rs plan --profile profile.json --devices 4 --memory 2GiB --report report.html
  gpipe-rs plan --model-shape llama2-7b --cluster dgx-h100 --nodes 2

All flags: gpipe-rs plan --help",
    after_long_help = "Examples:
  gpipe-rs plan --profile profile.json --devices 8 --memory 24GiB --link 25GB/s,5us
  gpipe-rs plan --profile profile.json --devices 3 --speed 1,1,0.5 --micro 16 --schedule 1f1b -o plan.json
  gpipe-rs plan --profile profile.json --devices 4 --memory 2GiB --report report.html
  gpipe-rs plan --profile profile.json --devices 8 --nodes 2 --node-link 100Gbit/s,20us --replicas 2
  gpipe-rs plan --profile profile.json --cluster dgx-a100 --nodes 16 --batch 2048
  gpipe-rs plan --profile profile.json --nodes 16 --per-node 8 --memory 40GiB --link-inside 450GB/s,3us --link-between 50GB/s,8us
  gpipe-rs plan --model-shape gpt3-175b --cluster dgx-a100 --nodes 128 --batch 1536"
)]
pub struct Args {
    /// What the model's layers cost, as `profile` writes it.
    #[arg(long, help_heading = MODEL, value_name = "FILE", required_unless_present = "model_shape")]
    profile: Option<PathBuf>,
    /// Profile of some of the same layers on the card that is planned for. Times
    /// of --profile are scaled to it, those of layers in both as each differs, the others as all of
    /// these differ together.
    #[arg(long, help_heading = MODEL, hide_short_help = true, value_name = "FILE", requires = "profile")]
    scale_to: Option<PathBuf>,
    /// Devices of all replicas together, such as 4. Their number, or a list as `train` has it, such as
    /// `cpu*4` or `cuda:0-3`.
    #[arg(
        long, help_heading = PIPELINE, value_name = "LIST", allow_negative_numbers = true, value_parser = input::device_count,
        required_unless_present_any = ["cluster", "per_node", "model_shape"]
    )]
    devices: Option<usize>,
    // After `devices`: headings come in the order of their first flags.
    #[command(flatten)]
    shape: ShapeFlags,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Memory of a device that the plan may fill, such as 22GiB. One value for all, or one for each of a
    /// replica.
    #[arg(long, help_heading = PIPELINE, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = input::memory)]
    memory: Option<Vec<Bytes>>,
    #[command(flatten)]
    reserve: Reserve,
    /// Speed of a device relative to the profiled one. One for all, or one for each of a replica.
    #[arg(
        long, help_heading = MACHINES,
        value_name = "LIST",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    speed: Option<Vec<f64>>,
    /// Cores that the devices share, where they are CPU threads; by default each device
    /// computes for itself.
    #[arg(
        long, help_heading = MACHINES, hide_short_help = true, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["nodes", "replicas"],
        value_parser = input::at_least_one
    )]
    cores: Option<usize>,
    /// Link between devices of a node: bandwidth and latency, such as 25GB/s,5us; by default the
    /// one in the profile, if it was measured.
    #[arg(long, help_heading = MACHINES, visible_alias = "link-inside", value_name = "LINK", value_parser = input::link)]
    link: Option<Link>,
    #[command(flatten)]
    spread: ReplicaNodeFlags,
    /// How many micro-batches each batch is split into, or auto.
    // The type is named in full because clap takes a plain Option for an optional flag.
    #[arg(
        long, help_heading = PIPELINE, visible_alias = "micro-batches", value_name = "M", default_value = "auto", allow_negative_numbers = true,
        value_parser = input::count_or_auto
    )]
    micro: std::option::Option<usize>,
    /// Samples of a mini-batch; by default as many micro-batches as asked for (auto:
    /// four a device) of the profile's size.
    #[arg(
        long, help_heading = TRAINING, visible_alias = "batch-size", value_name = "N", allow_negative_numbers = true,
        value_parser = input::at_least_one
    )]
    batch: Option<usize>,
    /// Schedule, or auto: the fastest that fits.
    #[arg(long, help_heading = PIPELINE, value_name = "NAME", default_value = "auto", value_parser = input::schedule)]
    schedule: ScheduleKind,
    /// Stages per device; chosen where not given.
    #[arg(
        long, help_heading = PIPELINE, visible_alias = "stages-per-device", value_name = "V",
        allow_negative_numbers = true, value_parser = input::at_least_one
    )]
    chunks: Option<usize>,
    /// Whether stages recompute their forward: never, always or auto (each by itself).
    #[arg(long, help_heading = PIPELINE, value_name = "WHEN", default_value = "auto", value_parser = input::recompute)]
    recompute: When,
    /// Whether stages keep activations in the host's memory until the backward: never, always or
    /// auto (each by itself); it needs a --host-link.
    #[arg(long, help_heading = PIPELINE, hide_short_help = true, value_name = "WHEN", default_value = "auto", value_parser = input::when)]
    offload: When,
    /// Link between a device and the host's memory: bandwidth and latency, such as 25GB/s,10us;
    /// by default the one in the profile, if it was measured.
    #[arg(long, help_heading = MACHINES, value_name = "LINK", value_parser = input::host_link)]
    host_link: Option<HostLink>,
    /// Whether passes are captured as CUDA graphs, if the profile has the host's times: never,
    /// always or auto (where the step is shorter).
    #[arg(long, help_heading = PIPELINE, hide_short_help = true, value_name = "WHEN", default_value = "auto", value_parser = input::when)]
    cuda_graphs: When,
    /// Leaves of the tree in which gradients are summed (`train --tree`): with K leaves, stages
    /// have up to log2(K) + 1 sets of gradients.
    #[arg(
        long, help_heading = MACHINES, hide_short_help = true, value_name = "K", default_value_t = 1, allow_negative_numbers = true,
        value_parser = input::leaves
    )]
    tree: usize,
    /// Write the plan to a file as JSON; `-` is standard output.
    #[arg(short, long, help_heading = OUTPUT, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a report (.html). Layers and cuts, timeline, memory over time, schedules compared.
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the plan as JSON.
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Name every runner-up, and what one more device or GiB would bring. For a cluster, the latter is
    /// always said, and no runner-up without this; of a --model-shape also what its times assume.
    #[arg(long, help_heading = OUTPUT)]
    explain: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let cluster = cluster::of(args)?;
    let machine = match (&cluster, args.devices) {
        (None, Some(devices)) => {
            let machine = args.spread.machine(devices)?;
            Some(fitted(args, machine).map_err(|error| Failure::Usage(error.to_string()))?)
        }
        _ => None,
    };
    check_files(args)?;
    let Planned {
        profile,
        mut plan,
        options,
        asked,
        reserve,
        said: of_model,
        assumed,
    } = {
        let _notice =
            SlowNotice::begin("planning: there are many choices, which may take a minute");
        match cluster {
            Some(cluster) => for_cluster(args, cluster)?,
            None => for_machine(args, machine)?,
        }
    };
    let samples = match &asked {
        Some(asked) => asked.batch,
        None => options.samples(profile.batch()).map_err(failure)?,
    };
    if args.batch.is_none() {
        say(&without_batch(samples, &args.shape, &profile));
    }
    // Computed costs have no measured sizes to warn about.
    if !args.shape.is_given() {
        for note in notes(&profile, &plan, &options) {
            say(&note);
        }
    }
    let limit = limit::sentence(&profile, &plan, &options, None);
    if let Some(asked) = &asked {
        plan.limit = Some(limit.clone());
        plan.more = what_more(&profile, asked, &plan);
    }
    let mut said = vec![Said::new("limit", limit.clone())];
    said.extend(beside(&profile, &plan, &options));
    if asked.is_none() && reserve > Bytes::ZERO {
        said.push(Said::new("memory", reserve::sentence(reserve)));
    }
    said.extend(match &asked {
        Some(asked) => cluster::said(&plan, asked, &args.shape),
        // For a cluster, neither offload nor CUDA graphs are chosen.
        None => choices::said(&profile, &plan, &options),
    });
    let more = [runners_up::without_pipeline(&plan), choices::more(&plan)];
    said.extend(more.into_iter().flatten().chain(of_model));
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if args.json || to_stdout {
        output::write(None, &plan.to_json())?;
    } else {
        let width = output::width(None);
        let shown = match (&asked, args.explain) {
            (_, true) => Shown::All,
            (Some(_), false) => Shown::Nothing,
            (None, false) => Shown::Few,
        };
        let text = report::text((&plan, samples), &profile, width, shown);
        let answer = asked
            .as_ref()
            .map(|asked| cluster_answers::lines(asked, &plan, (&args.shape, reserve)))
            .map_or_else(String::new, |answer| output::wrapped(&answer, width) + "\n");
        let all = said.iter().cloned().chain(below(args, assumed.as_ref()));
        let all: Vec<Said> = all.collect();
        output::print(&format!(
            "{answer}{text}\n{}",
            titled_lines::lines(&all, width)
        ))?;
    }
    if let Some(path) = args.output.as_ref().filter(|_| !to_stdout) {
        output::write(Some(path), &plan.to_json())?;
    }
    if let Some(path) = &args.report {
        let all = said.iter().skip(1).chain(&assumed).map(Said::sentence);
        let page = page::of(args, (&profile, &plan, &options), asked.as_ref(), all)?;
        output::write(Some(path), &page.with_limit(limit).html())?;
    }
    Ok(())
}

/// Checks that the output files can be written.
fn check_files(args: &Args) -> Result<(), Failure> {
    let file = args.output.as_deref();
    if let Some(path) = file.filter(|path| *path != Path::new("-")) {
        output::writable(path)
            .map_err(|why| Failure::Usage(format!("-o {}: {why}", path.display())))?;
    }
    match &args.report {
        Some(path) => page::check(
            path,
            &[("--profile", args.profile.as_deref()), ("-o", file)],
        ),
        None => Ok(()),
    }
}

/// Returns the end of a text: the assumptions of the times, in short unless asked for, and the next command.
fn below(args: &Args, assumed: Option<&Said>) -> impl Iterator<Item = Said> {
    let short = "times from data sheets, up to 15 % off; --explain says how";
    let assumed = assumed.map(|all| {
        if args.explain {
            all.clone()
        } else {
            Said::new("assumed", short)
        }
    });
    // A model's shape has computed layers, which no model here need have.
    let next = if args.shape.is_given() {
        let ways = "add -o plan.json to keep the plan, --report plan.html to draw it; on such a card, \
                    `gpipe-rs profile` measures the model itself";
        Said::new("next", ways)
    } else {
        next(args.output.as_deref())
    };
    assumed.into_iter().chain([next])
}

/// Suggests the next command for a plan.
fn next(file: Option<&Path>) -> Said {
    let text = match file {
        Some(path) => format!(
            "`gpipe-rs train --plan {}` follows it, with the data and the .pt2 that were profiled",
            quoted(path)
        ),
        None => "add -o plan.json to keep the plan; `gpipe-rs train --plan plan.json` follows it"
            .to_owned(),
    };
    Said::new("next", text)
}

/// A plan, with its inputs.
struct Planned {
    profile: Profile,
    plan: Plan,
    options: PlanOptions,
    /// For a cluster only.
    asked: Option<ClusterOptions>,
    /// Memory reserved on each device; for unequal devices, that of the largest.
    reserve: Bytes,
    /// Further notes on a model given by its shape, and the assumptions of its times.
    said: Vec<Said>,
    assumed: Option<Said>,
}

/// Adds to the failure how much memory of each device is reserved.
fn with_reserve(failure: Failure, reserve: Bytes) -> Failure {
    if reserve == Bytes::ZERO || matches!(failure, Failure::Usage(_)) {
        return failure;
    }
    failure.with(&format!("; {}", reserve::sentence(reserve)))
}

fn for_machine(args: &Args, machine: Option<Machine>) -> Result<Planned, Failure> {
    // clap requires one of the two.
    let Some(machine) = machine else {
        let why = "--devices or --cluster is missing";
        return Err(Failure::Usage(why.to_owned()));
    };
    let profile = measured(args)?;
    let (options, reserve) = options(args, machine, &profile)?;
    let planned = plan(&profile, &options).map_err(failure);
    let mut plan = planned.map_err(|error| with_reserve(error, reserve))?;
    if args.explain {
        plan.more = what_more_devices(&profile, &options, &plan);
    }
    let (profile, options, plan) = chosen(profile, options, plan);
    Ok(Planned {
        profile,
        plan,
        options,
        asked: None,
        reserve,
        said: Vec::new(),
        assumed: None,
    })
}

/// Returns the plan, or one stage with all cores instead, with its inputs.
pub fn chosen(profile: Profile, options: PlanOptions, plan: Plan) -> (Profile, PlanOptions, Plan) {
    let one = single_stage::on_all_cores(&profile, &plan, &options);
    if let Some(one) = &one {
        say(&one.note);
    }
    match one.filter(|one| one.wins) {
        Some(one) => (one.profile, one.options, one.plan),
        None => (profile, options, plan),
    }
}

fn for_cluster(args: &Args, (cluster, reserve): (Cluster, Bytes)) -> Result<Planned, Failure> {
    if args.shape.is_given() {
        return shape::planned(args, (cluster, reserve));
    }
    let profile = measured(args)?;
    if let Some(note) = notes::as_fast_as_measured(args, &cluster, &profile) {
        say(&format!("note: {note}"));
    }
    let asked = cluster::options(args, cluster, &profile);
    if let Some(why) = too_large(&profile, &asked) {
        say(&format!(
            "nothing fits: {why}; looking for what would be enough"
        ));
    }
    let planned = plan_cluster(&profile, &asked).map_err(failure);
    let (plan, options) = planned.map_err(|error| with_reserve(error, reserve))?;
    Ok(Planned {
        profile,
        plan,
        options,
        asked: Some(asked),
        reserve,
        said: Vec::new(),
        assumed: None,
    })
}

/// Reads the profile, and scales it if asked for.
fn measured(args: &Args) -> Result<Profile, Failure> {
    // clap requires a profile or a --model-shape, which needs a cluster.
    let Some(path) = &args.profile else {
        let why = "--model-shape needs the cards: --cluster <FILE|NODE>";
        return Err(Failure::Usage(why.to_owned()));
    };
    let profile = input::profile(path)?;
    input::say_doubts(&profile);
    let Some(there) = &args.scale_to else {
        return Ok(profile);
    };
    let wrong = |why: String| Failure::Usage(format!("--scale-to: {why}"));
    let there = Profile::read(there).map_err(|error| wrong(error.to_string()))?;
    let scaled = profile
        .scaled_to(&there)
        .map_err(|error| wrong(error.to_string()))?;
    say(&format!("note: {}", scaled.measured().unwrap_or_default()));
    Ok(scaled)
}

/// Returns the times for all-reduces of replicas and agreement of processes, if there are several.
fn beside(profile: &Profile, plan: &Plan, options: &PlanOptions) -> Vec<Said> {
    let Ok(schedule) = plan.generate() else {
        return Vec::new();
    };
    let costs = plan.costs(profile, options, &schedule);
    let step = simulate(&schedule, &costs).timeline;
    let lines = [
        titled_lines::exchange(&step),
        titled_lines::agreement(&options.machine, &step),
    ];
    lines.into_iter().flatten().collect()
}

/// Returns the machine with devices of the speed and memory asked for.
fn fitted(args: &Args, mut machine: Machine) -> Result<Machine, MachineError> {
    if let Some(speeds) = &args.speed {
        machine = machine.with_speeds(speeds)?;
    }
    if let Some(memory) = &args.memory {
        machine = machine.with_memory(memory)?;
    }
    if let Some(cores) = args.cores {
        machine = machine.with_cores(Cores::new(cores, 1)?);
    }
    Ok(machine)
}

/// Returns the options of the search, and the reserve of each device.
fn options(
    args: &Args,
    mut machine: Machine,
    profile: &Profile,
) -> Result<(PlanOptions, Bytes), Failure> {
    args.reserve.check(args.memory.is_some())?;
    let mut reserve = Bytes::ZERO;
    if let Some(memory) = &args.memory {
        let left = memory.iter().map(|own| args.reserve.left(*own, false));
        let left = left.collect::<Result<Vec<_>, _>>()?;
        let each = memory.iter().zip(&left).map(|(own, left)| *own - *left);
        reserve = each.max().unwrap_or_default();
        let wrong = |error: MachineError| Failure::Usage(error.to_string());
        machine = machine.with_memory(&left).map_err(wrong)?;
    }
    if let Some(link) = args.link.or(profile.link()) {
        machine = machine.with_link(link);
    }
    if let Some(link) = args.host_link.or(profile.host_link()) {
        machine = machine.with_host_link(link);
    }
    let mut options = PlanOptions::new(machine);
    options.micro_batches = args.micro;
    options.batch = args.batch;
    options.schedule = Some(args.schedule).filter(|&kind| kind != ScheduleKind::Auto);
    options.chunks = args.chunks;
    options.recompute = args.recompute;
    options.offload = args.offload;
    options.cuda_graphs = args.cuda_graphs;
    options.tree = args.tree;
    Ok((options, reserve))
}

/// Converts the error: that nothing fits is an answer, though not the one hoped for; everything else is about
/// the numbers asked for.
pub fn failure(error: PlanError) -> Failure {
    match error {
        PlanError::NoneFits { .. } => Failure::Run(anyhow::anyhow!(
            "{error}; more --devices or a smaller --batch may fit as well"
        )),
        PlanError::Shortage { .. } => Failure::Run(error.into()),
        _ => Failure::Usage(error.to_string()),
    }
}
