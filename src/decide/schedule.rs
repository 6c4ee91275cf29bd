//! `gpipe-rs schedule`: draws, checks and converts schedules, to and from PyTorch's CSV.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use gpipe_partitioner::words::count;
use gpipe_partitioner::{
    Action, CheckError, CheckedSchedule, Costs, CsvFormat, DeviceId, Micros, Schedule,
    ScheduleError, ScheduleKind, Shape, StageId, render, simulate,
};
use serde_json::{Value, json};

use super::table::{Align, Table};
use super::{Failure, input, output};

/// Arguments of `gpipe-rs schedule`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs schedule show --schedule zb-h1 --devices 4 --micro 6
  gpipe-rs schedule check schedule.csv
  gpipe-rs schedule export --schedule 1f1b --devices 4 --micro 8 --communication -o schedule.csv
  gpipe-rs schedule import from_torch.csv -o schedule.csv")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Draw a schedule: one row a device; F, I, W take one unit of time, B two.
    #[command(after_help = "Example: gpipe-rs schedule show --schedule 1f1b --devices 4 --micro 6")]
    Show(Show),
    /// Say whether a schedule can run to its end, or which action waits for what.
    ///
    /// The computation is checked. Sends and receives in a file follow from the computation and
    /// are left out when the file is read.
    #[command(after_help = "Example: gpipe-rs schedule check schedule.csv")]
    Check(Show),
    /// Write a schedule as CSV.
    #[command(
        after_help = "Example: gpipe-rs schedule export --schedule zbv --devices 4 --micro 8 -o zbv.csv"
    )]
    Export(Convert),
    /// Read a CSV of PyTorch's pipelining, check it, and write its computation.
    #[command(after_help = "Example: gpipe-rs schedule import from_torch.csv --json")]
    Import(Import),
}

/// A schedule from a file or by name.
#[derive(Debug, clap::Args)]
struct Source {
    /// Schedule as CSV; `-` is standard input.
    #[arg(
        value_name = "FILE",
        required_unless_present = "schedule",
        conflicts_with = "schedule"
    )]
    file: Option<PathBuf>,
    /// Built-in schedule instead of a file.
    #[arg(long, value_name = "NAME", requires_all = ["devices", "micro"], value_parser = input::schedule)]
    schedule: Option<ScheduleKind>,
    /// Devices of the built-in schedule: their number, or a list such as `cpu*4`.
    #[arg(long, value_name = "LIST", requires = "schedule", value_parser = input::device_count)]
    devices: Option<usize>,
    /// Micro-batches of the built-in schedule.
    #[arg(long, visible_alias = "micro-batches", value_name = "M", requires = "schedule", value_parser = input::at_least_one)]
    micro: Option<usize>,
    /// Stages per device; by default 2 where the schedule has several, else 1.
    #[arg(long, visible_alias = "stages-per-device", value_name = "V", requires = "schedule", value_parser = input::at_least_one)]
    chunks: Option<usize>,
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    source: Source,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Convert {
    #[command(flatten)]
    source: Source,
    /// Include a send and a receive where values go to another device.
    #[arg(long)]
    communication: bool,
    /// Write to a file; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Import {
    /// Schedule as CSV; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write one JSON object with placement and action lists instead of CSV.
    #[arg(long)]
    json: bool,
    /// Write to a file; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.verb {
        Verb::Show(show) => {
            let schedule = show.source.read()??;
            let text = if show.json {
                output::json(&actions(&schedule))
            } else {
                picture(&schedule, output::width(None))
            };
            output::write(None, &text)
        }
        Verb::Check(check) => verdict(check.source.read()?, check.json),
        Verb::Export(export) => {
            let schedule = export.source.read()??;
            let format = if export.communication {
                CsvFormat::ComputeAndCommunication
            } else {
                CsvFormat::Compute
            };
            output::write(export.output.as_deref(), &schedule.to_csv(format))
        }
        Verb::Import(import) => {
            let schedule = read_csv(&import.file)??;
            let text = if import.json {
                output::json(&actions(&schedule))
            } else {
                schedule.to_csv(CsvFormat::Compute)
            };
            output::write(import.output.as_deref(), &text)
        }
    }
}

/// Result of the check of a schedule that could be read.
type Checked = Result<CheckedSchedule, CheckError>;

impl Source {
    fn read(&self) -> Result<Checked, Failure> {
        if let Some(file) = &self.file {
            return read_csv(file);
        }
        // clap makes the flags require each other.
        let kind = self.schedule.unwrap_or(ScheduleKind::OneFOneB);
        let shape = Shape::new(self.devices.unwrap_or(1), self.micro.unwrap_or(1))
            .with_chunks(self.chunks.unwrap_or(kind.default_chunks()));
        match kind.generate(shape) {
            Ok(schedule) => Ok(Ok(schedule)),
            Err(ScheduleError::Illegal(error)) => Ok(Err(error)),
            Err(error) => Err(Failure::Usage(error.to_string())),
        }
    }
}

/// Reads a schedule as CSV. A file that is no CSV of actions is wrong use; legality is left to the check.
fn read_csv(file: &Path) -> Result<Checked, Failure> {
    let name = file
        .file_stem()
        .map_or("schedule".into(), |stem| stem.to_string_lossy());
    let named = file
        .to_str()
        .and_then(|name| name.parse::<ScheduleKind>().ok());
    if let (Some(kind), false) = (named, file.exists()) {
        return Err(Failure::Usage(format!(
            "{}: there is no such file; the built-in schedule is `--schedule {kind}`",
            file.display()
        )));
    }
    let text = input::text(file)?;
    if text.trim_start().starts_with('{') {
        return Err(Failure::Usage(format!(
            "{}: this is JSON, and no CSV of actions such as `schedule export` writes; where it is a \
             plan, `plan … --report FILE.html` draws its schedule",
            file.display()
        )));
    }
    let schedule = Schedule::from_csv(name, &text)
        .map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    Ok(schedule.check())
}

/// Draws the schedule in unit times: in columns if they fit, else to scale.
fn picture(schedule: &CheckedSchedule, width: usize) -> String {
    let unit = Micros::new(1.0).unwrap_or_default();
    let stages = schedule.schedule().stages();
    let timeline = simulate(schedule, &Costs::uniform(stages, unit, unit, unit)).timeline;
    // A cell takes at least three columns: larger grids are not drawn.
    let columns = timeline.makespan().get() * 3.0;
    if columns <= width as f64 {
        let grid = render::grid(&timeline, unit);
        if grid.lines().all(|line| line.len() <= width) {
            return grid;
        }
    }
    let how = "drawn with 1 µs for each forward and for each half of a backward; `simulate` takes your times, and \
               with -o FILE.html draws a page that can be zoomed";
    let how = output::wrapped(how, width);
    format!("{}{how}\n", render::text(&timeline, width))
}

fn verdict(checked: Checked, json: bool) -> Result<(), Failure> {
    match checked {
        Ok(schedule) if json => output::write(None, &output::json(&facts(&schedule))),
        Ok(schedule) => output::write(None, &facts_as_text(&schedule)),
        Err(error) => {
            if json {
                let verdict = json!({"legal": false, "reason": error.to_string()});
                output::write(None, &output::json(&verdict))?;
            }
            Err(error.into())
        }
    }
}

fn in_flight(schedule: &CheckedSchedule) -> Vec<f64> {
    let devices = (0..schedule.schedule().devices()).map(DeviceId);
    devices
        .map(|device| schedule.peak_in_flight_on(device))
        .collect()
}

fn facts(schedule: &CheckedSchedule) -> Value {
    let plan = schedule.schedule();
    json!({
        "legal": true,
        "devices": plan.devices(),
        "stages": plan.stages(),
        "micro_batches": plan.micro_batches(),
        "training": schedule.is_training(),
        "accumulates_in_order": schedule.accumulates_in_order(),
        "peak_in_flight": in_flight(schedule),
    })
}

fn facts_as_text(schedule: &CheckedSchedule) -> String {
    let plan = schedule.schedule();
    let mut text = format!(
        "legal: {}, {}, {}\n",
        count(plan.devices(), "device"),
        count(plan.stages(), "stage"),
        count(plan.micro_batches(), "micro-batch"),
    );
    // Sends and receives of a file were dropped when it was read: they follow from the computation, and
    // only that is checked. Writing to a String cannot fail.
    let _ = match (schedule.is_training(), schedule.accumulates_in_order()) {
        (false, _) => writeln!(text, "inference: forwards only"),
        (true, true) => writeln!(text, "gradients are added in micro-batch order"),
        (true, false) => writeln!(text, "gradients are not added in micro-batch order"),
    };
    let columns = ["device", "actions", "in flight"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    for (device, peak) in in_flight(schedule).into_iter().enumerate() {
        let actions = plan.actions(DeviceId(device)).len();
        table.row([
            device.to_string(),
            actions.to_string(),
            format!("{peak:.2}"),
        ]);
    }
    text + &table.render()
}

fn actions(schedule: &CheckedSchedule) -> Value {
    let plan = schedule.schedule();
    let names = |actions: &[Action]| -> Value { actions.iter().map(Action::to_string).collect() };
    let owners = (0..plan.stages()).map(|stage| schedule.device_of(StageId(stage)));
    json!({
        "name": plan.name(),
        "stages": plan.stages(),
        "micro_batches": plan.micro_batches(),
        "placement": owners.collect::<Vec<_>>(),
        "actions": plan.iter().map(|(_, list)| names(list)).collect::<Value>(),
    })
}
