//! Fits samples to a model, and the model's sizes to samples.

use std::path::Path;

use serde_json::Value;

use gpipe_partitioner::words::count;

use super::learned::{Learned, Pace};
use super::named_arrays;
use crate::model::Chosen;
use crate::model::flags::flag;
use crate::models::shapes;
use gpipe_data::{Check, DataError, HowMany, Missing, Normalise, SampleOptions, Samples};
use gpipe_models::USUAL_IGNORED;
use gpipe_models::zoo::{Fill, ModelSpec, Synthetic};

/// Options of data, other than its path.
#[derive(Debug, Clone)]
pub(crate) struct DataOptions {
    /// Target column of a table.
    pub(crate) target: Option<String>,
    /// Columns that are neither targets nor inputs.
    pub(crate) drop_columns: Vec<String>,
    pub(crate) missing: Missing,
    /// Held-out share.
    pub(crate) held_out: f64,
    pub(crate) normalise: Normalise,
    pub(crate) resize: Option<usize>,
    pub(crate) augment: bool,
    pub(crate) shuffle: bool,
    pub(crate) seed: u64,
    /// Loading threads; the default depends on the data.
    pub(crate) workers: Option<HowMany>,
    /// Prefetched batches; the default is the library's.
    pub(crate) prefetch: Option<HowMany>,
    /// Limit of bad samples skipped in an epoch.
    pub(crate) skip_bad: usize,
    /// The description saved by an earlier run.
    pub(crate) kept: Option<Value>,
}

/// Default held-out share.
pub(crate) const HELD_OUT: f64 = 0.1;

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            target: None,
            drop_columns: Vec::new(),
            missing: Missing::Refuse,
            held_out: HELD_OUT,
            normalise: Normalise::Auto,
            resize: None,
            augment: true,
            shuffle: true,
            seed: 0,
            workers: None,
            prefetch: None,
            skip_bad: 0,
            kept: None,
        }
    }
}

impl DataOptions {
    /// Loading pace.
    pub(crate) fn pace(&self) -> Pace {
        Pace {
            workers: self.workers,
            prefetch: self.prefetch,
            skip_bad: self.skip_bad as u64,
        }
    }
}

/// Names of the model sizes that set the number of classes.
const CLASSES: [&str; 3] = ["classes", "outputs", "vocab"];
/// Name of the model size that sets the length of a vector input.
const INPUTS: &str = "inputs";

/// Opens the samples at a path or the model's own, and adapts the model to them. `None` if there is no
/// path and the model has no samples.
///
/// # Errors
/// The data is invalid, or the model does not take it.
pub(crate) fn choose(
    chosen: &Chosen,
    path: Option<&Path>,
    options: &DataOptions,
) -> Result<Option<(Chosen, Learned)>, String> {
    let found = found(chosen, path, options);
    // The class dimension of an output may depend on the targets.
    match (found, chosen.turned()) {
        (Err(why), Some(other)) => self::found(&other, path, options).map_err(|_| why),
        (found, _) => found,
    }
}

fn found(
    chosen: &Chosen,
    path: Option<&Path>,
    options: &DataOptions,
) -> Result<Option<(Chosen, Learned)>, String> {
    if let Some(path) = path
        && let Some((chosen, several)) = named_arrays::by_name(chosen, path, options)?
    {
        return Ok(Some((
            named_arrays::ignoring(&chosen),
            Learned::Several(several),
        )));
    }
    let Some([input, target]) = pair(&chosen.spec) else {
        return match path {
            Some(path) => Err(named_arrays::refused(&chosen.spec, path)),
            None => Ok(None),
        };
    };
    let own_loss = chosen.spec.targets().is_empty();
    if own_loss && path.is_none() {
        return Ok(None);
    }
    let wanted = wanted(chosen, input, target, options).map_err(|error| error.to_string())?;
    let own = chosen.spec.own_samples(path, &wanted);
    let own = own.map_err(|error| format!("{error:#}"))?;
    let samples = match (own, path) {
        (Some(own), _) => own,
        (None, Some(path)) => Samples::open(path, &wanted).map_err(|error| error.to_string())?,
        (None, None) => return Ok(None),
    };
    // Evaluation data may well have a single class.
    if let (None, Some(why)) = (&options.kept, samples.teaches_nothing()) {
        return Err(why.to_owned());
    }
    let chosen = adapted(chosen, &samples)?;
    let samples = fitted(&chosen, &samples)?;
    let chosen = if samples.may_ignore() {
        named_arrays::ignoring(&chosen)
    } else {
        chosen
    };
    let learned = if own_loss {
        Learned::Inputs(samples)
    } else {
        Learned::Pairs(samples)
    };
    Ok(Some((chosen, learned)))
}

/// Returns the input and the target of a model with one of each, or both inputs of a model that
/// computes its own loss.
fn pair(spec: &ModelSpec) -> Option<[&Synthetic; 2]> {
    match (spec.inputs(), spec.targets()) {
        ([input], [target]) => Some([input, target]),
        ([input, target], []) if spec.named_loss().is_some() => Some([input, target]),
        _ => None,
    }
}

/// Options for samples that the model takes, as far as known before reading the data.
pub(super) fn wanted(
    chosen: &Chosen,
    input: &Synthetic,
    target: &Synthetic,
    own: &DataOptions,
) -> Result<SampleOptions, DataError> {
    let mut options = SampleOptions::default()
        .held_out(own.held_out)
        .seed(own.seed)
        .normalise(own.normalise.clone())
        .augment(own.augment)
        .shuffle(own.shuffle)
        .missing(own.missing)
        .drop_columns(own.drop_columns.iter().cloned())
        .skip_bad(own.skip_bad as u64)
        .kinds([input.kind(), target.kind()]);
    if let Some(column) = &own.target {
        options = options.target(column);
    }
    if let [name] = &named_arrays::names(&chosen.spec)[..] {
        options = options.input(name);
    }
    if let Some(side) = own.resize {
        options = options.resize(side);
    }
    let whole = matches!(input.fill(), Fill::Classes(_) | Fill::Integers(_));
    options = match *input.shape() {
        [channels @ (1 | 3), height, width] if !whole => options.image(channels, height, width),
        _ => options.no_images(),
    };
    if whole {
        options = options.integers();
    }
    options = match target.fill() {
        Fill::Classes(count) if !changes(chosen, CLASSES) => options.classes(count as usize),
        Fill::Classes(_) => options,
        // A model that computes its own loss may use its target in any way.
        Fill::Normal if !chosen.spec.targets().is_empty() => options.numbers().scale_targets(),
        _ => options.numbers(),
    };
    if let Some(ignored) = chosen.loss().and_then(|own| own.ignored()) {
        options = options.ignore_index(ignored);
    }
    match &own.kept {
        Some(kept) => options.kept(kept),
        None => Ok(options),
    }
}

/// Whether the first of these sizes that the model has was left to its default.
fn changes(chosen: &Chosen, sizes: impl IntoIterator<Item = &'static str>) -> bool {
    free(chosen, sizes).is_some()
}

/// Returns the first of these sizes that the model has, if the user did not choose it.
fn free(chosen: &Chosen, sizes: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    let own = sizes.into_iter().find(|size| chosen.has(size))?;
    (!chosen.chose(own)).then_some(own)
}

/// Sets the model's sizes from the data, except those that the user chose.
fn adapted(chosen: &Chosen, samples: &Samples) -> Result<Chosen, String> {
    if chosen.spec.exported().is_some() {
        let shapes = [samples.input(), samples.target()];
        return chosen.resized(&shapes[..chosen.spec.inputs().len()]);
    }
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
    // The default of 8 layers of 1,024 overfits small data, or does not learn it at all.
    if chosen.spec.name() == "mlp" {
        let hidden = (samples.train_len() / 64)
            .next_power_of_two()
            .clamp(64, 1024);
        let small = [("hidden", hidden), ("depth", 3)];
        let small = small.into_iter().filter(|(size, _)| !chosen.chose(size));
        settings.extend(small.map(|(size, value)| format!("{size}={value}")));
    }
    chosen.with(&settings).map_err(|error| error.to_string())
}

/// Shapes the samples as the model takes them.
fn fitted(chosen: &Chosen, samples: &Samples) -> Result<Samples, String> {
    let spec = &chosen.spec;
    let Some([input, target]) = pair(spec) else {
        return Err(format!(
            "`{}` has not one input and one target",
            spec.name()
        ));
    };
    check_classes(chosen, target, samples)?;
    let shaped = samples.shaped(input.shape(), target.shape());
    let shaped = shaped.map_err(|error| {
        let loss = other_loss(chosen, target, samples);
        format!(
            "{error}: {}{loss}{}",
            takes(spec),
            fixed_shape(spec, samples.input())
        )
    })?;
    let ignored = (chosen.loss().and_then(|own| own.ignored())).unwrap_or(USUAL_IGNORED);
    let input = check(input, "input", None);
    Ok(shaped.checked(input, check(target, "target", Some(ignored))))
}

/// Checks that there are no more classes than outputs, and no classes for a regression.
fn check_classes(chosen: &Chosen, target: &Synthetic, samples: &Samples) -> Result<(), String> {
    let name = chosen.spec.name();
    let Some(classes) = samples.classes() else {
        return Ok(());
    };
    match target.fill() {
        Fill::Classes(told) if classes as i64 > told => {
            let size = CLASSES.into_iter().find(|size| chosen.has(size));
            let help = match (size, chosen.spec.exported()) {
                (Some(size), _) => format!(": use {} {classes}", flag(size)),
                (None, Some(_)) => format!(
                    ": export it with an output of {classes}, or leave out the samples of \
                     the others",
                    classes = count(classes, "class")
                ),
                (None, None) => String::new(),
            };
            Err(format!(
                "there are {classes}{}, but `{name}` tells {told}{help}",
                names(samples),
                classes = count(classes, "class")
            ))
        }
        // Binary cross-entropy takes two classes.
        Fill::Uniform if classes <= 2 => Ok(()),
        Fill::Classes(_) => Ok(()),
        _ => {
            let loss = match chosen.loss() {
                Some(loss) => format!("is trained with --loss {}, which is for", loss.kind()),
                None => "learns".to_owned(),
            };
            Err(format!(
                "its targets are {classes}, but `{name}` {loss} numbers: take a loss for \
                 classes (--loss cross-entropy), or bring the targets as numbers, in arrays or a \
                 table",
                classes = count(classes, "class")
            ))
        }
    }
}

/// Lists the class names if they are few, so that an unintended one is noticed.
fn names(samples: &Samples) -> String {
    const MOST: usize = 12;
    match samples.class_names() {
        [] => String::new(),
        names if names.len() > MOST => String::new(),
        names => format!(" (`{}`)", names.join("`, `")),
    }
}

/// Suggests the other kind of loss where it may be meant: a single number may be a class, and several
/// numbers a one-hot class.
fn other_loss(chosen: &Chosen, target: &Synthetic, samples: &Samples) -> &'static str {
    let numbers = |shape: &[i64]| shape.iter().product::<i64>();
    let (own, wanted) = (numbers(samples.target()), numbers(target.shape()));
    let is_classes = matches!(target.fill(), Fill::Classes(_));
    match chosen.loss() {
        Some(_) if own == 1 && wanted > 1 && !is_classes => {
            "; where targets are classes, take --loss cross-entropy"
        }
        Some(_) if own > 1 && wanted == 1 && is_classes => {
            "; classes as ones and zeros (one-hot) become numbers by `y.argmax(axis=1)`, and several \
             numbers a sample are learnt with --loss mse"
        }
        _ => "",
    }
}

/// Hint to export a program with dynamic sizes, if the samples have the same number of dimensions.
pub(super) fn fixed_shape(spec: &ModelSpec, there: &[i64]) -> String {
    let input = spec.inputs().first().filter(|_| spec.exported().is_some());
    let wanted = input.map_or(&[][..], Synthetic::shape);
    let differs = |(own, wanted): (&i64, &i64)| own != wanted;
    match there.iter().zip(wanted).position(differs) {
        Some(at) if there.len() == wanted.len() => format!(
            "; it takes other sizes if dimension {} is Dim.DYNAMIC in the dynamic_shapes of its export, and no \
             --context is chosen",
            at + 1
        ),
        _ => String::new(),
    }
}

/// Describes the model's inputs and targets.
pub(super) fn takes(spec: &ModelSpec) -> String {
    let inputs = shapes(spec.inputs());
    match spec.targets() {
        [] => format!("`{}` takes {inputs}", spec.name()),
        targets => format!(
            "`{}` takes {inputs} and learns {}",
            spec.name(),
            shapes(targets)
        ),
    }
}

/// Returns the check of the data's values for the model; `ignored` is an additional valid target value,
/// `None` for inputs.
pub(super) fn check(one: &Synthetic, what: &'static str, ignored: Option<i64>) -> Check {
    let own = match one.fill() {
        Fill::Classes(known) => {
            let last = known - 1;
            let why = match ignored {
                Some(_) => format!(
                    "but the model's classes are 0 to {last}: subtract 1 where yours begin at 1, use a \
                     model of more classes, or leave such targets out of the loss with --ignore-index"
                ),
                None => format!(
                    "but the model takes 0 to {last} there: subtract 1 where yours begin at 1, or use a \
                     model with more of them (the rows of its embedding)"
                ),
            };
            let own = Check::whole(what).within(0.0, last as f64, why);
            own.or(ignored)
        }
        Fill::Integers(_) => Check::whole(what),
        Fill::Uniform => Check::any(what).within(
            0.0,
            1.0,
            "and binary cross-entropy takes numbers from 0 to 1: divide them by their largest, or \
             take another loss",
        ),
        Fill::Normal => Check::any(what),
    };
    own.of_kind(one.kind())
}
