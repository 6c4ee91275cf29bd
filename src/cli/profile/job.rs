//! A profiling job: the model and data named by flags.

use gpipe_partitioner::words::count;
use gpipe_partitioner::{ModelId, PlanOptions};
use tch::Device;

use super::options::Args;
use super::report::Loading;
use crate::feed::{self, DataOptions, Measured, Source};
use crate::model::Chosen;
use crate::model::exported::AskedLoss;
use crate::train::few_samples;
use crate::{Failure, host_memory};
use gpipe_models::zoo::{ModelSpec, Zoo};
use gpipe_torch::{Sample, Sequential};

/// A fully configured measurement.
#[derive(Debug)]
pub(super) struct Job<'a> {
    args: &'a Args,
    chosen: Chosen,
    source: Source,
    /// Whether the user chose the vocabulary size.
    chose_vocab: bool,
    /// Micro-batch sizes to measure.
    pub(super) micro_sizes: Vec<usize>,
    /// Smallest micro-batch in training.
    pub(super) fewest: usize,
    pub(super) options: PlanOptions,
}

impl<'a> Job<'a> {
    /// Checks everything possible before minutes are spent on measuring.
    pub(super) fn new(args: &'a Args, zoo: &Zoo) -> Result<Self, Failure> {
        args.check()?;
        let loss = AskedLoss {
            kind: args.loss,
            ignore_index: None,
        };
        let chosen = Chosen::new(zoo, &args.model, &args.sizes.0, loss)?;
        let micro = micro(args, &chosen)?;
        if args.data.is_some() && chosen.spec.exported().is_some() && chosen.loss().is_none() {
            return Err(Failure::Usage(
                "--data is for models with targets: say with --loss what this one is trained with"
                    .to_owned(),
            ));
        }
        feed::check_batch(&chosen.spec, args.batch).map_err(Failure::Usage)?;
        let options = super::plan_options(args, micro)?;
        check_stages(args, &chosen)?;
        (options.check(chosen.layers())).map_err(crate::plan::failure)?;
        let of_data = DataOptions {
            target: args.target.clone(),
            drop_columns: args.drop_columns.clone(),
            missing: args.missing,
            held_out: args.held_out,
            normalise: args.normalise.clone(),
            workers: args.workers,
            prefetch: args.prefetch,
            ..DataOptions::default()
        };
        let chose_vocab = chosen.chose("vocab");
        let (chosen, source) = Source::choose(chosen, args.data.as_deref(), None, &of_data)?;
        check_memory(args, &chosen.spec)?;
        let fewest = few_samples::fewest_in_training(&chosen.spec)?;
        let micro_sizes = micro_sizes(args, &chosen, fewest);
        Ok(Self {
            args,
            chosen,
            source,
            chose_vocab,
            micro_sizes,
            fewest,
            options,
        })
    }

    pub(super) fn spec(&self) -> &ModelSpec {
        &self.chosen.spec
    }

    /// Returns the vocabulary size as text, if it comes from the data.
    pub(super) fn vocabulary(&self) -> Option<String> {
        if self.chose_vocab || matches!(self.source, Source::Synthetic(_)) {
            return None;
        }
        let mut sizes = self.spec().settings().iter();
        let (_, vocab) = sizes.find(|(size, _)| *size == "vocab")?;
        Some(format!(
            "vocab={vocab}, as `train` takes it, is that of the data ({}); choose another one with --vocab N",
            self.source.name()
        ))
    }

    /// Identity of the model in profiles and plans.
    pub(super) fn model_id(&self) -> ModelId {
        self.chosen.id()
    }

    /// Builds the model and a micro-batch of the largest size.
    pub(super) fn sample(&self) -> anyhow::Result<(Sequential, Sample)> {
        let largest = self.micro_sizes.iter().copied().max().unwrap_or(1);
        let spec = self.spec();
        let (inputs, targets) = spec.sample(largest, 0)?;
        let sample = Sample::new(inputs);
        // Without a loss, a program's layers are measured as if a loss followed.
        let sample = match (spec.exported(), self.chosen.loss()) {
            (Some(_), None) => sample,
            _ => sample.with_loss(targets, spec.loss()),
        };
        Ok((spec.build(), sample))
    }

    /// Measures the loader, if there is `--data`.
    pub(super) fn loading(&self) -> anyhow::Result<Option<Loading>> {
        if self.args.data.is_none() {
            return Ok(None);
        }
        let batch = self.args.batch;
        let Measured { each, phases } = self.source.measure(self.spec(), batch)?;
        Ok(Some(Loading {
            data: self.source.name(),
            batch,
            each,
            phases,
        }))
    }
}

/// Returns the requested number of micro-batches, or the only one that an exported program takes.
fn micro(args: &Args, chosen: &Chosen) -> Result<Option<usize>, Failure> {
    let Some(model) = chosen.spec.exported() else {
        return Ok(args.micro);
    };
    if let Some(why) = model.no_training() {
        let path = model.path().display();
        return Err(Failure::Usage(format!("--model {path}: {why}")));
    }
    let only = model
        .micro_batch_size()
        .map(|size| (args.batch / size.max(1)).max(1));
    let micro = args.micro.or(only);
    if let Some(micro) = micro {
        let fits = chosen.check_micro(args.batch, micro);
        fits.map_err(Failure::Usage)?;
    }
    Ok(micro)
}

/// Returns the micro-batch sizes to measure that the model takes in training.
fn micro_sizes(args: &Args, chosen: &Chosen, fewest: usize) -> Vec<usize> {
    let taken = (chosen.spec.exported()).map_or(1..=usize::MAX, |own| own.micro_batch_sizes());
    let least = fewest.clamp(*taken.start(), *taken.end());
    let bound = |size: usize| size.clamp(least, *taken.end());
    let mut sizes: Vec<usize> = args.micro_sizes().into_iter().map(bound).collect();
    sizes.dedup();
    sizes
}

/// Checks the memory: every CPU stage, measured or competing, has its own parameters and gradients.
fn check_memory(args: &Args, spec: &ModelSpec) -> Result<(), Failure> {
    let on_cpu = |device: &&Device| **device == Device::Cpu;
    let stages = args.devices.iter().filter(on_cpu).count() as u64;
    let layers = spec.build().parameter_bytes()?;
    let largest = layers.iter().copied().max().unwrap_or(0);
    let (parameters, instead) = if args.low_memory {
        (largest * stages.min(1), "it has a layer that is too large")
    } else {
        let all: u64 = layers.iter().sum();
        (
            all.saturating_mul(stages),
            "--low-memory has one layer at a time",
        )
    };
    let what = format!("parameters and gradients of `{}`", spec.name());
    host_memory::check(&what, parameters.saturating_mul(2), instead).map_err(Failure::Usage)
}

/// Checks that every stage has at least one layer.
fn check_stages(args: &Args, chosen: &Chosen) -> Result<(), Failure> {
    let stages = (args.devices.len()).saturating_mul(args.chunks.unwrap_or(1));
    if stages <= chosen.layers() {
        return Ok(());
    }
    let more = chosen
        .size_for(|layers| layers >= stages)
        .unwrap_or_else(|| "a model of more layers".to_owned());
    Err(Failure::Usage(format!(
        "{stages}, but `{}` has only {}: use fewer --devices or --chunks, or {more}",
        chosen.spec.name(),
        chosen.describe_layers(),
        stages = count(stages, "stage")
    )))
}
