//! `gpipe-rs plot`: draws the metrics of runs as curves over their steps.

mod axis;
mod chart;
mod field;
mod history;
mod layout;
mod line;
mod picture;
mod png;

use std::path::{Path, PathBuf};

use super::{Failure, input, output};
use field::Field;
use history::History;

/// Arguments of `gpipe-rs plot`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs plot runs/1
  gpipe-rs plot runs/1 runs/2 --smooth 20 -o compared.svg
  gpipe-rs plot runs/1 --metrics loss,lr,bubble_measured -o run.svg")]
pub struct Args {
    /// Run folders, or files like the `metrics.jsonl` in them. A run that still goes on is drawn up
    /// to its newest step.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Fields of metrics.jsonl to draw, one chart each. By default the loss, the held-out accuracy
    /// where there is one, and tokens or samples per second.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    metrics: Vec<String>,
    /// Draw the mean of the last N steps, with the steps themselves faintly behind; 1 draws these
    /// alone. By default about a fiftieth of the steps.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    smooth: Option<usize>,
    /// Draw losses, norms and rates by their logarithms, where all are above 0.
    #[arg(long)]
    log: bool,
    /// Where to write the picture: a name that ends in .svg, or in .png where the program
    /// was built with the feature `png`; `-` is standard output, as SVG. By default
    /// `plot.svg` in the first run's folder.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// File format of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Svg,
    Png,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let target = target(args);
    let format = format(&target).map_err(|why| wrong_output(&target, &why))?;
    let runs = args.runs.iter().map(|run| History::read(run));
    let runs = runs
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::Usage)?;
    let fields = Field::choose(&runs, &args.metrics).map_err(Failure::Usage)?;
    let smooth = args.smooth.unwrap_or_else(|| picture::usual_window(&runs));
    let svg = picture::draw(&runs, &fields, (smooth, args.log));
    match format {
        Format::Svg => output::write(Some(&target), &svg),
        Format::Png => output::write_bytes(&target, &png::render(&svg)?),
    }
}

fn target(args: &Args) -> PathBuf {
    let beside = |run: &PathBuf| {
        let folder = if run.is_dir() {
            Some(run.as_path())
        } else {
            run.parent()
        };
        folder.unwrap_or(Path::new("")).join("plot.svg")
    };
    let first = args.runs.first().map(beside);
    args.output.clone().or(first).unwrap_or_default()
}

/// Returns the format by the file's name; checked before anything is read.
fn format(target: &Path) -> Result<Format, String> {
    if target == Path::new("-") {
        return Ok(Format::Svg);
    }
    output::writable(target)?;
    let extension = target.extension().and_then(|extension| extension.to_str());
    match extension.map(str::to_lowercase).as_deref() {
        Some("svg") => Ok(Format::Svg),
        Some("png") => png::available().map(|()| Format::Png),
        _ => Err("the name must end in .svg or .png".to_owned()),
    }
}

fn wrong_output(target: &Path, why: &str) -> Failure {
    Failure::Usage(format!("--output {}: {why}", target.display()))
}
