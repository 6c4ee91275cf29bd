//! `gpipe-rs predict`: predictions of a trained model for samples without targets.

mod formats;
mod predictions;

use std::path::{Path, PathBuf};

use tch::Tensor;

use super::eval::{Batches, cut};
use super::feed::learned::Learned;
use super::feed::remote::local;
use super::feed::{DataOptions, not_data, unlabelled};
use super::model::{Chosen, exported};
use super::trained::{Devices, Place, Spoken, Trained};
use super::{Failure, failure, input};
use gpipe_data::{Part, Samples, cells, not_finite};
use gpipe_models::zoo::Zoo;
use gpipe_torch::{Pipeline, Values};
use predictions::{Teller, Told};

/// Default batch size, if the run has none.
const BATCH: usize = 32;

/// Arguments of `gpipe-rs predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs predict --run runs/pets --best photo.jpg
  gpipe-rs predict --run runs/pets holiday/ -o holiday.csv --top 3
  gpipe-rs predict --run runs/iris new.csv --id plant -o told.csv")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Samples of the kind that was trained on, without targets: images, or folders of images; a table
    /// with the columns of the inputs (.csv, .tsv, .parquet, .arrow); an array of inputs (.npy, or `x`
    /// in .npz or .safetensors).
    #[arg(value_name = "PATH", required_unless_present = "named")]
    data: Vec<PathBuf>,
    /// The same, by the flag that other verbs have for data.
    #[arg(id = "named", long = "data", value_name = "PATH")]
    named: Vec<PathBuf>,
    /// The K most likely classes of each sample.
    #[arg(long, value_name = "K", default_value = "1", allow_negative_numbers = true, value_parser = input::at_least_one)]
    top: usize,
    /// Samples that are computed at a time; by default as many as in training.
    #[arg(long, visible_alias = "batch-size", value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    batch: Option<usize>,
    /// Name samples by this column of their table instead of by file and line.
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
    #[command(flatten)]
    on: Devices,
    /// Write a CSV file with a row for each sample instead of printing a table.
    #[arg(short, long, value_name = "FILE.csv", conflicts_with = "json")]
    output: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    let paths = || args.data.iter().chain(&args.named);
    for path in paths() {
        not_data::check(path).map_err(|why| wrong(path, &why))?;
    }
    if let Some(path) = &args.output {
        formats::check(path)?;
    }
    let trained = Trained::read(&args.place, &Spoken::default(), zoo)?;
    let options = options(&trained)?;
    let chosen = Chosen::of_spec(zoo, &trained.spec);
    let mut all: Vec<(Samples, Vec<String>)> = Vec::new();
    for path in paths() {
        let here = local(path).map_err(|why| wrong(path, &why))?;
        let samples = unlabelled(&chosen, &here, &options).map_err(Failure::Usage)?;
        let names = match &args.id {
            Some(column) => named(&here, column, samples.len())?,
            None => (0..samples.len())
                .map(|own| samples.place(own).to_string())
                .collect(),
        };
        all.push((samples, names));
    }
    let batch = args.batch.or(trained.settings.batch).unwrap_or(BATCH);
    let (batch, micro) = cut(&trained, args.batch, (batch, args.on.devices.len()))?;
    let mut reader = Reader {
        pipe: trained.pipeline(&args.on.devices, micro)?,
        trained: &trained,
        batch,
        micro,
        done: Batches::new(all.iter().map(|(own, _)| own.len().div_ceil(batch)).sum()),
    };
    let mut told = Vec::new();
    for (samples, names) in all {
        told.extend(names.into_iter().zip(reader.read(&samples)?));
    }
    drop(reader);
    formats::write(args, &trained, &told)
}

/// The error for a path.
fn wrong(path: &Path, why: &str) -> Failure {
    Failure::Usage(format!("{}: {why}", path.display()))
}

/// Reads the names of a table's rows from a column.
fn named(path: &Path, column: &str, rows: usize) -> Result<Vec<String>, Failure> {
    let names = cells(path, column).map_err(|error| Failure::Usage(format!("--id: {error}")))?;
    if names.len() == rows {
        return Ok(names);
    }
    let why = format!(
        "--id: it changed while it was read: {} rows, now {}",
        rows,
        names.len()
    );
    Err(wrong(path, &why))
}

/// Returns the run's data options, without randomness.
///
/// # Errors
/// The run was not trained on samples; the error names the verb for its model.
fn options(trained: &Trained) -> Result<DataOptions, Failure> {
    let options = &trained.settings.options;
    if options.kept.is_some() {
        return Ok(DataOptions {
            held_out: 0.0,
            augment: false,
            skip_bad: 0,
            ..options.clone()
        });
    }
    Err(Failure::Usage(if trained.tokens().is_ok() {
        format!(
            "`{}` is a model of texts: `generate --prompt TEXT` goes on with a text",
            trained.spec.name()
        )
    } else {
        "it was not trained on samples of a file, and nothing says how inputs are to be read"
            .to_owned()
    }))
}

/// A model that predicts.
struct Reader<'a> {
    pipe: Pipeline,
    trained: &'a Trained,
    batch: usize,
    micro: usize,
    done: Batches,
}

impl Reader<'_> {
    /// Returns the model's predictions for all samples.
    fn read(&mut self, samples: &Samples) -> Result<Vec<Told>, Failure> {
        let teller = Teller::of(&self.trained.spec, samples);
        let learned = Learned::Pairs(samples.clone());
        let pace = self.trained.settings.options.pace();
        let pace = pace.or_workers(learned.workers());
        let batches = learned.load(Part::All, (self.batch, pace), None);
        let mut told = Vec::new();
        for pair in batches.map_err(anyhow::Error::from)?.into_iter().flatten() {
            let (x, _) = pair.map_err(anyhow::Error::from)?;
            let bad = |x: &Values| x.present().find_map(|own| not_finite(own).ok()?);
            let kept = x.shallow_clone();
            let outputs = self.outputs(x)?;
            let own = teller.told(&outputs).map_err(|failure| match bad(&kept) {
                Some(row) => Failure::Usage(format!(
                    "sample {} (counted from 0) has inputs that are NaN or infinite, for which no model \
                     tells anything: leave it out",
                    told.len() + row
                )),
                None => failure,
            })?;
            told.extend(own);
            self.done.done();
        }
        Ok(told)
    }

    /// Returns the model's first output for a batch. A batch smaller than the model takes is padded
    /// with copies of its last sample; their outputs are dropped.
    fn outputs(&mut self, x: Values) -> Result<Tensor, Failure> {
        let rows = x.present().next().map_or(0, |x| x.size()[0]);
        let most = self.batch.max(self.micro) as i64;
        let fits = rows as usize >= self.micro
            && exported::takes(&self.trained.spec, rows as usize, self.micro);
        let x = if fits || rows == 0 {
            x
        } else {
            let copies = Tensor::arange(most, (tch::Kind::Int64, tch::Device::Cpu));
            let copies = copies.clamp_max(rows - 1);
            x.try_map(|x| x.f_index_select(0, &copies))?
        };
        let outputs = self.pipe.forward_values(x).map_err(failure)?;
        let first = outputs.present().next();
        let first = first.ok_or_else(|| anyhow::anyhow!("the model has no output"))?;
        let first = first.f_narrow(0, 0, rows)?;
        Ok(first
            .f_to_device(tch::Device::Cpu)?
            .f_to_kind(tch::Kind::Double)?)
    }
}
