//! Samples for a model: which of them fit, and which sizes of the model are theirs.

use std::path::Path;

use serde_json::Value;

use crate::cli::model::Chosen;
use crate::cli::model::flags::flag;
use crate::cli::models::shapes;
use crate::data::{DataError, Normalise, SampleOptions, Samples};
use crate::models::zoo::{Fill, ModelSpec, Synthetic};

/// What is said of data, beside where it is.
#[derive(Debug, Clone)]
pub(in crate::cli) struct DataOptions {
    /// The column of a table with the targets.
    pub(in crate::cli) target: Option<String>,
    /// The share that is held out.
    pub(in crate::cli) held_out: f64,
    pub(in crate::cli) normalise: Normalise,
    pub(in crate::cli) resize: Option<usize>,
    pub(in crate::cli) augment: bool,
    pub(in crate::cli) seed: u64,
    /// Threads that read and decode; by default as many as suit the data.
    pub(in crate::cli) workers: Option<usize>,
    /// What an earlier run has kept of it.
    pub(in crate::cli) kept: Option<Value>,
}

/// What is held out where nothing is said.
pub(in crate::cli) const HELD_OUT: f64 = 0.1;

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            target: None,
            held_out: HELD_OUT,
            normalise: Normalise::Auto,
            resize: None,
            augment: true,
            seed: 0,
            workers: None,
            kept: None,
        }
    }
}

/// What a model's names for the number of its classes are.
const CLASSES: [&str; 3] = ["classes", "outputs", "vocab"];
/// What it calls the numbers of an input that is a row of them.
const INPUTS: &str = "inputs";

/// The samples that a path names, or that the model brings itself, and the model for them; none
/// where there are none: of a model that brings nothing, without a path.
///
/// # Errors
/// What is wrong with the data, or why the model does not take it.
pub(in crate::cli) fn choose(
    chosen: &Chosen,
    path: Option<&Path>,
    options: &DataOptions,
) -> Result<Option<(Chosen, Samples)>, String> {
    let (input, target) = match (chosen.spec.inputs(), chosen.spec.targets()) {
        ([input], [target]) => (input, target),
        _ if path.is_none() => return Ok(None),
        _ => return Err(several(&chosen.spec)),
    };
    let wanted = wanted(chosen, input, target, options).map_err(|error| error.to_string())?;
    let own = chosen.spec.own_samples(path, &wanted);
    let own = own.map_err(|error| format!("{error:#}"))?;
    let samples = match (own, path) {
        (Some(own), _) => own,
        (None, Some(path)) => Samples::open(path, &wanted).map_err(|error| error.to_string())?,
        (None, None) => return Ok(None),
    };
    let chosen = adapted(chosen, &samples)?;
    let samples = fitted(&chosen, &samples)?;
    Ok(Some((chosen, samples)))
}

fn several(spec: &ModelSpec) -> String {
    if spec.targets().is_empty() {
        return format!(
            "`{}` computes its loss itself from {}, but samples have one input and one target each: \
             export the model without its loss, and name one with --loss",
            spec.name(),
            shapes(spec.inputs())
        );
    }
    format!(
        "`{}` takes {} and learns {}, but samples have one input and one target each",
        spec.name(),
        shapes(spec.inputs()),
        shapes(spec.targets())
    )
}

/// What the model takes, as far as it is known before the data.
fn wanted(
    chosen: &Chosen,
    input: &Synthetic,
    target: &Synthetic,
    own: &DataOptions,
) -> Result<SampleOptions, DataError> {
    let mut options = SampleOptions::default()
        .held_out(own.held_out)
        .seed(own.seed)
        .normalise(own.normalise.clone())
        .augment(own.augment);
    if let Some(column) = &own.target {
        options = options.target(column);
    }
    if let Some(side) = own.resize {
        options = options.resize(side);
    }
    options = match *input.shape() {
        [channels @ (1 | 3), height, width] => options.image(channels, height, width),
        _ => options.no_images(),
    };
    if matches!(input.fill(), Fill::Classes(_)) {
        options = options.integers();
    }
    options = match target.fill() {
        Fill::Classes(count) if !changes(chosen, CLASSES) => options.classes(count as usize),
        Fill::Classes(_) => options,
        _ => options.numbers(),
    };
    match &own.kept {
        Some(kept) => options.kept(kept),
        None => Ok(options),
    }
}

/// Whether a size that nobody chose is one of these.
fn changes(chosen: &Chosen, sizes: impl IntoIterator<Item = &'static str>) -> bool {
    free(chosen, sizes).is_some()
}

/// The first of some sizes that the model has, where nobody chose it.
fn free(chosen: &Chosen, sizes: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    let own = sizes.into_iter().find(|size| chosen.has(size))?;
    (!chosen.chose(own)).then_some(own)
}

/// The model with the sizes of the data, where it has such that nobody chose.
fn adapted(chosen: &Chosen, samples: &Samples) -> Result<Chosen, String> {
    let numbers = |shape: &[i64]| shape.iter().product::<i64>().max(1);
    let mut settings = Vec::new();
    if let Some(size) = free(chosen, CLASSES) {
        let count = match samples.classes() {
            Some(count) => count as i64,
            None => numbers(samples.target()),
        };
        settings.push(format!("{size}={}", count.max(1)));
    }
    if let Some(size) = free(chosen, [INPUTS]) {
        settings.push(format!("{size}={}", numbers(samples.input())));
    }
    chosen.with(&settings).map_err(|error| error.to_string())
}

/// The samples in the shapes that the model takes.
fn fitted(chosen: &Chosen, samples: &Samples) -> Result<Samples, String> {
    let spec = &chosen.spec;
    let ([input], [target]) = (spec.inputs(), spec.targets()) else {
        return Err(several(spec));
    };
    if let (Some(classes), Fill::Classes(told)) = (samples.classes(), target.fill())
        && classes as i64 > told
    {
        let size = CLASSES.into_iter().find(|size| chosen.has(size));
        let help = size.map_or_else(String::new, |size| {
            format!(": use {} {classes}", flag(size))
        });
        return Err(format!(
            "there are {classes} classes, but `{}` tells {told}{help}",
            spec.name()
        ));
    }
    let shaped = samples.shaped(input.shape(), target.shape());
    let shaped = shaped.map_err(|error| {
        format!(
            "{error}: `{}` takes {} and learns {}",
            spec.name(),
            shapes(spec.inputs()),
            shapes(spec.targets())
        )
    })?;
    let shaped = match input.fill() {
        Fill::Classes(known) => shaped.inputs_below(known as usize),
        _ => shaped,
    };
    Ok(shaped.of_kinds(input.kind(), target.kind()))
}
