//! Flags of `simulate`, and their checked form.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, ValueEnum};
use gpipe_partitioner::{
    Bytes, Cores, Failures, HostLink, Jitter, Link, Machine, Micros, ScheduleKind, Strategy, When,
};

use super::super::names::heading::{MACHINES, MODEL, OUTPUT, PIPELINE, TIMES, TRAINING};
use super::super::plan::page;
use super::super::replica_node_flags::ReplicaNodeFlags;
use super::super::{Failure, input};
use super::flag_times::Given;
use super::memory::Limits;
use super::risks::Risks;
use super::sweep::{self, SweptFlag};
use super::workload::{Profiled, Workload};

/// Arguments of `gpipe-rs simulate`.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("what").args(["schedule", "compare", "sweep"]).required(true).multiple(true)))]
#[command(group(ArgGroup::new("jittery").args(["jitter", "sweep"]).multiple(true)))]
#[command(group(ArgGroup::new("failing").args(["mtbf", "sweep"]).multiple(true)))]
#[command(
    after_help = "Examples:
  gpipe-rs simulate --schedule zbv --devices 8 --micro 32 --format html -o zbv.html
  gpipe-rs simulate --compare --devices 8 --micro 32
  gpipe-rs simulate --sweep micro=8,16,32,64 --sweep schedule=1f1b,zb-h1,zbv --devices 8

All flags: gpipe-rs simulate --help",
    after_long_help = "Examples:
  gpipe-rs simulate --schedule 1f1b --devices 4 --micro 8
  gpipe-rs simulate --schedule zbv --devices 8 --micro 32 --format html -o zbv.html
  gpipe-rs simulate --schedule zb-h2 --devices 4 --micro 8 --steps 20
  gpipe-rs simulate --compare --devices 8 --micro 32 --input-us 1200 --link 25GB/s,5us --output-bytes 16MiB
  gpipe-rs simulate --schedule auto --devices 4 --micro 16 --profile profile.json --balance 3,4,4,3
  gpipe-rs simulate --sweep micro=8,16,32,64 --sweep schedule=1f1b,zb-h1,zbv --devices 8 --format html -o sweep.html
  gpipe-rs simulate --compare --devices 8 --micro 32 --jitter 5%
  gpipe-rs simulate --sweep jitter=0,2,5,10 --sweep schedule=1f1b,zb-h1,zbv --devices 8 --micro 32
  gpipe-rs simulate --schedule 1f1b --devices 8 --micro 32 --forward-us 90000 --mtbf 6h --checkpoint-time 30s --restart-time 5min
  gpipe-rs simulate --schedule 1f1b --devices 8 --micro 16 --nodes 2 --node-link 100Gbit/s,20us --replicas 2 --profile profile.json"
)]
pub struct Args {
    #[arg(
        long, help_heading = PIPELINE,
        value_name = "NAME",
        value_parser = input::schedule,
        help = format!("Schedule: {}", ScheduleKind::choice(ScheduleKind::ALL))
    )]
    pub(super) schedule: Option<ScheduleKind>,
    /// Devices of all replicas together, such as 4. Their number, or a list as `train` has it, such as
    /// `cpu*4` or `cuda:0-3`.
    #[arg(
        long, help_heading = PIPELINE, value_name = "LIST", required_unless_present = "sweep",
        allow_negative_numbers = true, value_parser = input::device_count
    )]
    pub(super) devices: Option<usize>,
    /// How many micro-batches each batch is split into.
    #[arg(
        long, help_heading = PIPELINE, visible_alias = "micro-batches", value_name = "M",
        required_unless_present = "sweep", allow_negative_numbers = true, value_parser = input::at_least_one
    )]
    pub(super) micro: Option<usize>,
    /// Steps in a row with no barrier between them, and the bubble of their steady state; one step,
    /// unless this is given.
    #[arg(
        long, help_heading = TRAINING, value_name = "N", allow_negative_numbers = true,
        conflicts_with_all = ["compare", "sweep", "jitter", "mtbf", "processes", "replicas", "nodes"], value_parser = input::at_least_one
    )]
    steps: Option<usize>,
    /// Stages per device; by default 2 where the schedule has several, else 1.
    #[arg(
        long, help_heading = PIPELINE, visible_alias = "stages-per-device", value_name = "V",
        allow_negative_numbers = true, value_parser = input::at_least_one
    )]
    pub(super) chunks: Option<usize>,
    /// Forward of one micro-batch on one device, in microseconds; a chunk takes 1/V.
    #[arg(long, help_heading = TIMES, value_name = "TIME", default_value = "1000", allow_negative_numbers = true, value_parser = input::micros)]
    forward_us: Micros,
    /// Input-gradient half of the backward.
    #[arg(long, help_heading = TIMES, value_name = "TIME", default_value = "1000", allow_negative_numbers = true, value_parser = input::micros)]
    input_us: Micros,
    /// Weight-gradient half of the backward.
    #[arg(long, help_heading = TIMES, value_name = "TIME", default_value = "1000", allow_negative_numbers = true, value_parser = input::micros)]
    weight_us: Micros,
    /// Bytes of a micro-batch between two stages. They count with --link.
    #[arg(long, help_heading = TIMES, value_name = "BYTES", default_value = "0", value_parser = input::bytes)]
    output_bytes: Bytes,
    /// Bytes that a micro-batch keeps on a device until its backward.
    #[arg(long, help_heading = TIMES, value_name = "BYTES", default_value = "0", value_parser = input::bytes)]
    activation_bytes: Bytes,
    /// Gradients of one device's parameters, which replicas exchange.
    #[arg(long, help_heading = TIMES, hide_short_help = true, value_name = "BYTES", default_value = "0", value_parser = input::bytes)]
    gradient_bytes: Bytes,
    /// Times and bytes of the layers from a profile, instead of the times and bytes above.
    #[arg(
        long, help_heading = MODEL, value_name = "FILE",
        conflicts_with_all = ["forward_us", "input_us", "weight_us", "output_bytes", "activation_bytes", "gradient_bytes"]
    )]
    profile: Option<PathBuf>,
    /// How layers are cut: profile (the shortest step that is found), parameters, uniform, or such as 3,5,4.
    #[arg(long, help_heading = PIPELINE, value_name = "HOW", default_value = "profile", requires = "profile", value_parser = strategy)]
    balance: Strategy,
    /// Whether stages recompute: never, always or auto. With auto, a computed schedule recomputes
    /// single micro-batches where memory asks for it. Without a profile it needs --output-bytes: what
    /// a recompute starts from.
    #[arg(long, help_heading = PIPELINE, value_name = "WHEN", default_value = "never", value_parser = input::recompute)]
    recompute: When,
    /// Whether stages keep activations in the host's memory until the backward: never, always or
    /// auto; it needs a --host-link. With auto, a computed schedule does so with single
    /// micro-batches where memory asks for it.
    #[arg(long, help_heading = PIPELINE, hide_short_help = true, value_name = "WHEN", default_value = "never", value_parser = input::when)]
    offload: When,
    /// Link between a device and the host's memory, such as 25GB/s,10us; by default the one in
    /// the profile, if it was measured.
    #[arg(long, help_heading = MACHINES, value_name = "LINK", value_parser = input::host_link)]
    host_link: Option<HostLink>,
    /// Simulate CUDA graphs on the stages that can have them, if the profile has the host's times.
    #[arg(long, help_heading = PIPELINE, hide_short_help = true, requires = "profile")]
    cuda_graphs: bool,
    /// Link between devices of a node: bandwidth and latency, such as 25GB/s,5us; by default the
    /// one in the profile, if it was measured.
    #[arg(long, help_heading = MACHINES, visible_alias = "link-inside", value_name = "LINK", value_parser = input::link)]
    link: Option<Link>,
    #[command(flatten)]
    spread: ReplicaNodeFlags,
    /// Cores that the devices share, where they are CPU threads; by default each device
    /// computes for itself.
    #[arg(
        long, help_heading = MACHINES, hide_short_help = true, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["nodes", "replicas"],
        value_parser = input::at_least_one
    )]
    cores: Option<usize>,
    /// What to print; by default what the ending of --output says (.svg, .html, .json), or else text.
    #[arg(long, help_heading = OUTPUT, value_name = "FORMAT")]
    format: Option<Format>,
    /// The same as --format json.
    #[arg(long, help_heading = OUTPUT, conflicts_with = "format")]
    json: bool,
    /// All schedules as one table.
    #[arg(long, help_heading = OUTPUT, conflicts_with = "schedule")]
    pub(super) compare: bool,
    /// Every combination of devices, micro, schedule, chunks, jitter or mtbf, such as micro=8,16. One
    /// table or chart; may repeat. Jitter is in percent. What is not listed stays as its own flag says;
    /// without a schedule all that train are taken.
    #[arg(long, help_heading = OUTPUT, value_name = "WHAT=LIST", conflicts_with = "compare", value_parser = sweep::swept)]
    pub(super) sweep: Vec<SweptFlag>,
    /// Memory of a device, such as 24GiB. One value for all, or one for each of a replica. Says of
    /// each schedule whether it fits, and has `auto` take one that does.
    #[arg(long, help_heading = PIPELINE, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = input::memory)]
    memory: Option<Vec<Bytes>>,
    #[command(flatten)]
    pub(super) risks: Risks,
    /// Write to a file; `-` is standard output.
    #[arg(short, long, help_heading = OUTPUT, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Write a report (.html) beside what is printed: what --format html shows.
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}

/// Output format of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A timeline with one row a device, and a table.
    Text,
    /// An SVG picture.
    Svg,
    /// A page with the picture, details under the pointer, and a table.
    Html,
    /// Chrome's trace events: opens in Perfetto.
    Trace,
    /// One object with the numbers.
    Json,
}

/// The arguments, checked against each other.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) kind: Option<ScheduleKind>,
    /// Devices of each replica.
    pub(super) devices: usize,
    /// Micro-batches of each replica.
    pub(super) micro: usize,
    /// Steps in a row, if asked for.
    pub(super) steps: Option<usize>,
    pub(super) machine: Machine,
    /// Limits of memory.
    pub(super) limits: Limits,
    pub(super) chunks: Option<usize>,
    pub(super) workload: Workload,
    pub(super) jitter: Option<Jitter>,
    pub(super) failures: Option<Failures>,
}

impl Options {
    /// Checks the options of one simulation, or of a comparison.
    pub(super) fn new(args: &Args) -> Result<Self, Failure> {
        let missing = |flag: &str| Failure::Usage(format!("{flag} is missing"));
        let devices = args.devices.ok_or_else(|| missing("--devices"))?;
        let micro = args.micro.ok_or_else(|| missing("--micro"))?;
        Self::of(args, devices, micro)
    }

    /// Same as `new`, for these numbers of devices and micro-batches, over all replicas.
    pub(super) fn of(args: &Args, devices: usize, micro: usize) -> Result<Self, Failure> {
        let mut machine = args.spread.machine(devices)?;
        if let Some(memory) = &args.memory {
            let limited = machine.with_memory(memory);
            machine = limited.map_err(|error| Failure::Usage(format!("--memory: {error}")))?;
        }
        let limits = Limits::of(&machine);
        let workload = workload(args, &machine)?;
        if limits.are_given() && !workload.knows_memory() {
            let why = "--memory: nothing is known about memory; give --activation-bytes, such as 1GiB, or a --profile";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(Self {
            kind: args.schedule,
            devices: machine.devices().len(),
            micro: args.spread.each(micro, "micro-batches")?,
            steps: args.steps,
            chunks: args.chunks,
            workload,
            limits,
            machine,
            jitter: args.risks.jitter()?,
            failures: args.risks.failures()?,
        })
    }
}

impl Args {
    /// Returns the flag that asks for several schedules, if one does.
    fn several(&self) -> Option<&'static str> {
        let compare = self.compare.then_some("--compare");
        compare.or((!self.sweep.is_empty()).then_some("--sweep"))
    }

    pub(super) fn format(&self) -> Format {
        if self.json {
            return Format::Json;
        }
        let ending = self.ending();
        self.format.or(ending).unwrap_or(Format::Text)
    }

    /// Returns the format implied by the name of the output file, if any.
    fn ending(&self) -> Option<Format> {
        let ending = self.output.as_deref()?.extension()?.to_str()?;
        match ending {
            "svg" => Some(Format::Svg),
            "html" | "htm" => Some(Format::Html),
            "json" => Some(Format::Json),
            _ => None,
        }
    }

    /// Checks that the format exists, and that it agrees with the names of the files.
    pub(super) fn check_files(&self) -> Result<(), Failure> {
        const PICTURES: [&str; 6] = ["pdf", "png", "jpg", "jpeg", "webp", "gif"];
        if let Some(path) = &self.report {
            let profile = ("--profile", self.profile.as_deref());
            page::check(path, &[profile, ("-o", self.output.as_deref())])?;
        }
        let output = self.output.as_deref().unwrap_or(Path::new(""));
        let end = output.extension().and_then(|end| end.to_str());
        let named = self.format.is_none() && !self.json && self.output.is_some();
        let several = self.several();
        let kinds = match several {
            Some(_) => ".html, .json or .txt",
            None => ".svg, .html, .json or .txt",
        };
        if named && end.is_some_and(|end| PICTURES.contains(&end)) {
            return Err(Failure::Usage(format!(
                "--output {}: no files of the kind .{} are written: name one that ends in {kinds}",
                output.display(),
                end.unwrap_or_default()
            )));
        }
        if let Some(flag) = several
            && !matches!(self.format(), Format::Text | Format::Json | Format::Html)
        {
            return Err(Failure::Usage(if named {
                format!(
                    "--output {}: with {flag} a table or a page is written: name a file that ends in \
                     {kinds}",
                    output.display()
                )
            } else {
                format!("{flag} is a table, or a page: use --format text, json or html with it")
            }));
        }
        let (format, Some(ending)) = (self.format(), self.ending()) else {
            return Ok(());
        };
        // Chrome's trace events are JSON, too.
        if format == ending || (format, ending) == (Format::Trace, Format::Json) {
            return Ok(());
        }
        let name = output.display();
        Err(Failure::Usage(format!(
            "--output {name}: the name asks for another format than --format or --json: leave that out, \
             or give the file another name"
        )))
    }
}

fn workload(args: &Args, machine: &Machine) -> Result<Workload, Failure> {
    let mut machine = machine.clone();
    if let Some(cores) = args.cores {
        let cores = Cores::new(cores, 1).map_err(|error| Failure::Usage(error.to_string()))?;
        machine = machine.with_cores(cores);
    }
    let Some(path) = &args.profile else {
        let unknown = args.output_bytes == Bytes::ZERO || args.activation_bytes == Bytes::ZERO;
        if args.recompute != When::Never && unknown {
            let why = "--recompute: nothing is known about what it would free: give \
                       --activation-bytes and --output-bytes, or a --profile";
            return Err(Failure::Usage(why.to_owned()));
        }
        if args.offload != When::Never {
            let unknown = if args.activation_bytes == Bytes::ZERO {
                Some("what would leave: give --activation-bytes, or a --profile")
            } else if args.host_link.is_none() {
                Some("the way to the host's memory: give a --host-link")
            } else {
                None
            };
            if let Some(unknown) = unknown {
                let why = format!("--offload: nothing is known about {unknown}");
                return Err(Failure::Usage(why));
            }
        }
        if let Some(link) = args.host_link {
            machine = machine.with_host_link(link);
        }
        return Ok(Workload::Given(Box::new(Given {
            forward: args.forward_us,
            input: args.input_us,
            weight: args.weight_us,
            activation: args.activation_bytes,
            output: args.output_bytes,
            gradients: args.gradient_bytes,
            recompute: args.recompute,
            offload: args.offload,
            machine: match args.link {
                Some(link) => machine.with_link(link),
                None => machine,
            },
        })));
    };
    let profile = input::profile(path)?;
    let link = args.link.or(profile.link());
    if let Some(link) = args.host_link.or(profile.host_link()) {
        machine = machine.with_host_link(link);
    }
    if let Some(link) = link {
        machine = machine.with_link(link);
    }
    Ok(Workload::Profiled(Box::new(Profiled {
        profile,
        strategy: args.balance.clone(),
        unlimited: (args.memory.is_some()).then(|| machine.clone().without_memory()),
        machine,
        recompute: args.recompute,
        offload: args.offload,
        cuda_graphs: args.cuda_graphs,
    })))
}

fn strategy(text: &str) -> Result<Strategy, String> {
    let text = text.trim();
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return input::balance(text).map(Strategy::Manual);
    }
    let wrong = "must be profile, parameters, uniform, or layers of each stage such as 3,5,4";
    Strategy::from_name(text, None).map_err(|_| wrong.to_owned())
}
