//! Class targets.

use std::collections::BTreeSet;

use gpipe_partitioner::words::{all, count};
use tch::{Kind, Tensor};

use super::kept::MOST_CLASSES;
use super::{SampleOptions, damage};
use crate::{DataError, Made, Place, RandomPart};

/// Numbered classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) classes: usize,
    /// Least label; 0 if the labels were not read.
    pub(super) least: i64,
    /// The only label, if all labels were read.
    pub(super) only: Option<i64>,
    /// Number of classes above the least label without samples, if all labels were read.
    pub(super) unused: usize,
}

impl Counted {
    /// Explains why the labels of so many samples teach nothing, if so.
    pub(super) fn teaches_nothing(&self, samples: usize) -> Option<String> {
        let label = self.only?;
        Some(format!(
            "the targets of {} are {label}: there is nothing to tell apart; give samples of \
             another class, too",
            all(samples, "sample")
        ))
    }

    /// Notes that some classes have no samples.
    pub(super) fn unused(&self) -> Option<String> {
        let least = usize::try_from(self.least).ok()?;
        (self.unused > 0).then(|| {
            format!(
                "{} of the {} have no sample: classes are counted from 0 to the largest label, {}",
                self.unused + least,
                count(self.classes, "class"),
                self.classes - 1
            )
        })
    }
}

/// Counts the classes: as the options say, or one more than the largest target, for which all targets
/// are read. `targets` yields targets of several samples along the first dimension, with their places.
///
/// # Errors
/// A target cannot be read or is not a class.
pub(super) fn counted<P: Fn(usize) -> Place>(
    options: &SampleOptions,
    targets: impl Iterator<Item = Result<(Tensor, P), DataError>>,
) -> Result<Counted, DataError> {
    let known = options.kept.as_ref().and_then(|kept| kept.classes);
    if let Some(classes) = options.count.or(known) {
        return Ok(Counted {
            classes,
            least: 0,
            only: None,
            unused: 0,
        });
    }
    let labels = distinct(None, options.ignored, targets)?;
    let (least, largest) = ends(&labels).unwrap_or((0, -1));
    let classes = usize::try_from(largest.saturating_add(1)).ok();
    match classes.filter(|classes| *classes <= MOST_CLASSES) {
        Some(classes) => Ok(Counted {
            classes,
            least,
            only: (least == largest).then_some(least),
            // The range from least to largest label, minus the labels that occur.
            unused: (largest - least + 1) as usize - labels.len(),
        }),
        None => Err(DataError::Settings(format!(
            "a target is {largest}, which is no class"
        ))),
    }
}

/// Checks the labels against the number of classes in the options, unless an earlier run has done so;
/// returns the least and the largest label if they were read.
///
/// # Errors
/// A label cannot be read, or is not one of these classes.
pub(super) fn check<P: Fn(usize) -> Place>(
    options: &SampleOptions,
    targets: impl Iterator<Item = Result<(Tensor, P), DataError>>,
) -> Result<Option<(i64, i64)>, DataError> {
    match (options.count, &options.kept) {
        (Some(classes), None) => {
            let labels = distinct(Some(classes), options.ignored, targets)?;
            Ok(ends(&labels))
        }
        _ => Ok(None),
    }
}

/// Returns the least and the largest label.
fn ends(labels: &BTreeSet<i64>) -> Option<(i64, i64)> {
    labels.first().copied().zip(labels.last().copied())
}

/// Returns the labels that occur, except the ignored one.
///
/// # Errors
/// A label cannot be read, or is not a class; the error names the first such sample.
fn distinct<P: Fn(usize) -> Place>(
    classes: Option<usize>,
    ignored: i64,
    targets: impl Iterator<Item = Result<(Tensor, P), DataError>>,
) -> Result<BTreeSet<i64>, DataError> {
    let mut all = BTreeSet::new();
    for some in targets {
        let (some, place) = some?;
        let labels = match among(&some, classes, ignored) {
            Ok(labels) => labels,
            Err(why) => return Err(first_wrong(&some, classes, ignored, place)?.unwrap_or(why)),
        };
        let counted = labels.f_masked_select(&labels.f_ne(ignored)?)?;
        if counted.numel() == 0 {
            continue;
        }
        let least = counted.f_min()?.f_int64_value(&[])?;
        let largest = counted.f_max()?.f_int64_value(&[])?;
        all.extend([least, largest]);
        // No model has more classes, and counting takes memory for each.
        if largest <= MOST_CLASSES as i64 {
            let counts = counted.f_bincount(None::<&Tensor>, 0)?;
            all.extend(Vec::<i64>::try_from(counts.f_nonzero()?.f_view([-1])?)?);
        }
    }
    Ok(all)
}

/// Explains the first invalid target of several, with its sample.
fn first_wrong(
    targets: &Tensor,
    classes: Option<usize>,
    ignored: i64,
    place: impl Fn(usize) -> Place,
) -> Result<Option<DataError>, DataError> {
    for index in 0..targets.size()[0] {
        if let Err(why) = among(&targets.f_get(index)?, classes, ignored) {
            let (place, what) = (place(index as usize), why.to_string());
            return Ok(Some(DataError::Bad { place, what }));
        }
    }
    Ok(None)
}

fn out_of_range(label: i64, classes: usize) -> String {
    format!(
        "label {label} is out of the range 0 to {}: {classes} classes are counted from 0; mend it, \
         subtract 1 where yours begin at 1, take a model of {} classes (--outputs or --classes), or \
         leave such targets out of the loss with --loss cross-entropy --ignore-index {label}",
        classes as i64 - 1,
        label.saturating_add(1)
    )
}

/// Converts targets to class numbers; one number is ignored by losses.
///
/// # Errors
/// A target is not an integer, or is below 0 and not the ignored number.
fn whole(target: &Tensor, ignored: i64) -> Result<Tensor, DataError> {
    let classes = target.f_to_kind(Kind::Int64)?;
    if target.is_floating_point() {
        let back = classes.f_to_kind(Kind::Double)?;
        let same = back.f_eq_tensor(&target.f_to_kind(Kind::Double)?)?;
        if same.f_all()?.f_int64_value(&[])? == 0 {
            return Err(DataError::Settings(
                "there are targets that are no whole numbers, and this model tells classes: take a \
                 model and a loss for numbers, such as `mlp` with --loss mse"
                    .to_owned(),
            ));
        }
    }
    let counted = classes.f_masked_fill(&classes.f_eq(ignored)?, 0)?;
    if counted.numel() > 0 {
        let least = counted.f_min()?.f_int64_value(&[])?;
        if least < 0 {
            return Err(DataError::Settings(below(least, ignored)));
        }
    }
    Ok(classes)
}

fn below(label: i64, ignored: i64) -> String {
    format!(
        "label {label} is below 0, and so no class (but for {ignored}, which is left out): mend it, or \
         leave such targets out of the loss with --loss cross-entropy --ignore-index {label}"
    )
}

/// Like [`whole`], for so many classes if known.
///
/// # Errors
/// As [`whole`], or a target is not one of these classes.
fn among(target: &Tensor, classes: Option<usize>, ignored: i64) -> Result<Tensor, DataError> {
    let labels = whole(target, ignored)?;
    if let Some(classes) = classes
        && labels.numel() > 0
    {
        let counted = labels.f_masked_fill(&labels.f_eq(ignored)?, -1)?;
        let largest = counted.f_max()?.f_int64_value(&[])?;
        if largest >= classes as i64 {
            return Err(DataError::Settings(out_of_range(largest, classes)));
        }
    }
    Ok(labels)
}

/// Converts targets to class numbers below `classes`, or the ignored number.
///
/// # Errors
/// A target is neither.
pub(super) fn of(target: &Tensor, classes: usize, ignored: i64) -> anyhow::Result<Tensor> {
    // A fast path for a single class, without libtorch.
    if target.numel() == 1 && target.kind() == Kind::Int64 {
        let class = target.f_int64_value(&vec![0; target.dim()])?;
        if (0..classes as i64).contains(&class) || class == ignored {
            return Ok(target.shallow_clone());
        }
    }
    Ok(among(target, Some(classes), ignored)?)
}

/// Returns the names without samples, if classes are known.
pub(super) fn absent(known: &[i64], names: &[String]) -> Vec<String> {
    if known.is_empty() {
        return Vec::new();
    }
    let there: BTreeSet<i64> = known.iter().copied().collect();
    let all = names.iter().enumerate();
    let all = all.filter(|(class, _)| !there.contains(&(*class as i64)));
    all.map(|(_, name)| name.clone()).collect()
}

/// Notes classes whose samples are all held out.
pub(super) fn untrained(
    known: &[i64],
    held: usize,
    (names, order): (&[String], Option<u64>),
) -> Option<String> {
    if held == 0 || known.is_empty() {
        return None;
    }
    let range = 0..known.len() - held;
    let origin = |index| match order {
        None => index,
        Some(seed) => {
            let (source, range) = (Made::new(known.len(), Ok), range.clone());
            let drawn = RandomPart {
                source,
                range,
                seed,
            };
            drawn.origin(index)
        }
    };
    let trained: BTreeSet<i64> = range.clone().map(|index| known[origin(index)]).collect();
    let all: BTreeSet<i64> = known.iter().copied().collect();
    let left = all.difference(&trained);
    let left = left.filter_map(|class| names.get(usize::try_from(*class).ok()?));
    let left: Vec<String> = left.map(|name| format!("`{name}`")).collect();
    (!left.is_empty()).then(|| {
        format!(
            "nothing is trained on of {}: all of it is held out, so take a smaller --held-out or give \
             more samples",
            damage::named(&left)
        )
    })
}
