//! Training samples: inputs and targets of several kinds, behind one interface.
//!
//! 1. The kind of data is detected, with its shapes, classes and test part ([`found`]).
//! 2. Without a test part, some samples are held out.
//! 3. Inputs are scaled, by the statistics of the training samples if requested.
//! 4. Numbers are checked and converted to the model's shapes and types ([`shapes`], [`checks`]).
//!
//! Models of several inputs take arrays of their names ([`several`]).
//!
//! Results that depend on the data are saved with a run: class names and their order, columns, scales.
//! A later run on other files reuses them, so that numbers keep their meaning.

pub(crate) mod checks;
mod damage;
mod folder;
mod found;
mod images;
mod kept;
mod kinds;
mod labels;
mod loading;
mod moments;
mod numbers;
mod options;
mod picture;
mod pillow;
mod records;
mod rounding;
mod scaling;
mod several;
mod shapes;
pub(super) mod splits;
mod table;
mod unlabelled;

use std::path::Path;
use std::sync::Arc;
use std::{fmt, mem};

use gpipe_partitioner::words::count;
use serde_json::{Value, json};
use tch::Tensor;

use super::stages::Range;
use super::{DataError, RandomPart, Source};

pub use folder::ImageFolder;
pub use loading::Part;
pub use moments::Moments;
pub use options::{Missing, Normalise, SampleOptions};
pub use scaling::not_finite;
pub use several::Field;
pub use several::Several;
pub use table::cells;

use found::{Found, Labels};
use kept::Kept;
use scaling::{Scaling, Usual};
use shapes::{Targets, converted};

/// An input and its target.
type Pair = (Tensor, Tensor);
/// Samples from any source.
type Pairs = Arc<dyn Source<Item = Pair>>;

/// Training samples, and held-out samples.
///
/// ```
/// use gpipe::data::{SampleOptions, Samples};
///
/// # let folder = std::env::temp_dir().join(format!("gpipe-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join("iris.csv");
/// std::fs::write(&path, "length,width,species\n5.1,3.5,setosa\n6.2,2.9,virginica\n")?;
/// let samples = Samples::open(&path, &SampleOptions::default().held_out(0.0))?;
/// assert_eq!(samples.input(), [2]);
/// assert_eq!(samples.class_names(), ["setosa", "virginica"]);
/// let mut batches = samples.batches(2).load()?;
/// let (x, y) = batches.next().expect("endless")?;
/// assert_eq!((x.size(), y.size()), (vec![2, 2], vec![2]));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone)]
pub struct Samples {
    train: Pairs,
    held_out: Option<Pairs>,
    /// All samples, in order.
    all: Pairs,
    input: Vec<i64>,
    target: Vec<i64>,
    /// Seed of the order; `None` for the order of the data.
    order: Option<u64>,
    about: [&'static str; 2],
    /// Above 0 if the first classes have no samples.
    least_label: i64,
    /// Whether some targets may be ignored by losses.
    may_ignore: bool,
    /// The reason why nothing can be learned: all targets are known to be one class.
    teaches_nothing: Option<String>,
    /// Notes about the samples.
    notes: Vec<String>,
    /// Named classes without samples, as far as known.
    absent: Vec<String>,
    kept: Kept,
}

impl fmt::Debug for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Samples")
            .field("train", &self.train.identity())
            .field("held_out", &self.held_out.as_ref().map(|own| own.len()))
            .field("input", &self.input)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl Samples {
    /// Opens the samples of a file or a folder: arrays (`.safetensors`, `.npz`, `.npy`), a table
    /// (`.csv`, `.tsv`), a folder of images, IDX files or TFRecords.
    ///
    /// # Errors
    /// The data is none of these, or it is damaged, incomplete or inconsistent. The error says where,
    /// and what to do.
    pub fn open(path: &Path, options: &SampleOptions) -> Result<Self, DataError> {
        options.check()?;
        let found = kinds::found(path, options)?;
        if found.train.is_empty() {
            return Err(DataError::bad_path(path, "there is no sample in it"));
        }
        Self::of_found(found, options)
    }

    /// Whether [`Samples::open`] supports this kind of data; it does not support text or token files.
    ///
    /// # Errors
    /// There is nothing at the path, or it cannot be read.
    pub fn known(path: &Path) -> Result<bool, DataError> {
        Ok(kinds::kind(path)?.is_some())
    }

    /// Makes samples of a custom source of inputs and targets, and of another one that is held out.
    /// Without another one, some samples are held out as the options say. Inputs become floats
    /// (integers, if the options say so), and class targets become integers.
    ///
    /// # Errors
    /// The first sample fails, there are no samples, or targets are not classes.
    pub fn of<S, T>(
        train: S,
        held_out: Option<T>,
        options: &SampleOptions,
    ) -> Result<Self, DataError>
    where
        S: Source<Item = (Tensor, Tensor)>,
        T: Source<Item = (Tensor, Tensor)>,
    {
        options.check()?;
        if train.is_empty() {
            let what = format!("there is no sample in {}", train.identity());
            return Err(DataError::Settings(what));
        }
        let (x, y) = train.get(0, 0)?;
        let labels = if options.classes {
            let first = [&train as &dyn Source<Item = Pair>].into_iter();
            let all = first.chain(held_out.iter().map(|own| own as &dyn Source<Item = Pair>));
            let targets = all.flat_map(|own| {
                (0..own.len()).map(move |index| {
                    let target = own.get(0, index)?.1.f_unsqueeze(0)?;
                    Ok((target, move |_| own.place(0, index)))
                })
            });
            Labels::Counted(labels::counted(options, targets)?)
        } else {
            Labels::Numbers
        };
        let train: Pairs = Arc::new(train);
        let found = Found {
            input: x.size(),
            target: y.size(),
            labels,
            may_ignore: true,
            test: held_out.map(|own| Arc::new(own) as Pairs),
            ..Found::new(train, None)
        };
        Self::of_found(found, options)
    }

    fn of_found(mut found: Found, options: &SampleOptions) -> Result<Self, DataError> {
        let teaches_nothing = match &found.labels {
            Labels::Counted(own) => own.teaches_nothing(found.plain.len()),
            _ => found.teaches_nothing.take(),
        };
        let mut notes = mem::take(&mut found.notes);
        notes.extend(found.labels.unused());
        let labels = mem::replace(&mut found.labels, Labels::Numbers);
        let (classes, names, least_label) = match labels {
            Labels::Named(names) => (Some(names.len()), names, 0),
            Labels::Counted(own) => (Some(own.classes), Vec::new(), own.least),
            Labels::Numbers => (None, Vec::new(), 0),
        };
        let (all, order) = (found.plain.len(), options.order());
        let held = match found.test {
            Some(_) => 0,
            None => (all as f64 * options.held_out) as usize,
        };
        if !found.damaged.is_empty() {
            let skipped = damage::named(&found.damaged);
            notes.push(format!("cannot be read, and are skipped: {skipped}"));
        }
        if found.test.is_none() && held == 0 && options.held_out > 0.0 {
            notes.push(format!(
                "nothing is held out, as a share of {} of {all} is less than one",
                options.held_out
            ));
        }
        notes.extend(labels::untrained(&found.known, held, (&names, order)));
        let absent = labels::absent(&found.known, &names);
        let part = |source: &Pairs, range| part(source, range, order);
        let scaling = match &options.kept {
            Some(kept) => {
                kept.scaling.check(&found.input)?;
                kept.scaling.clone()
            }
            None if options.integers => Scaling::default(),
            None => {
                let plain = part(&found.plain, 0..all - held);
                Scaling::choose(
                    &options.normalise,
                    (found.usual, found.fills),
                    &found.input,
                    &plain,
                )?
            }
        };
        let by_statistics = found.usual == Usual::Standard && options.scales_by_statistics();
        let target_scaling = match &options.kept {
            Some(kept) => kept.target_scaling.clone(),
            None if classes.is_none() && options.scaled_targets && by_statistics => {
                Scaling::of_targets(&found.target, part(&found.plain, 0..all - held))?
            }
            None => Scaling::default(),
        };
        if let (Some((mean, std)), Some(column)) = (target_scaling.one(), &found.column) {
            notes.push(table::scaled(column, (mean, std)));
        }
        // Classes are integers, which are not rounded.
        let of_targets = classes.is_none().then_some(&target_scaling);
        notes.extend(found.rounded(options, all - held, (&scaling, of_targets)));
        let scaled = (!options.integers).then(|| scaling.clone());
        let targets = match classes {
            Some(count) => Targets::Classes(count, options.ignored),
            None => Targets::Numbers(target_scaling.clone()),
        };
        let made = |pairs: Pairs| converted(pairs, scaled.clone(), targets.clone(), options.kinds);
        let held_out = match found.test {
            Some(test) => Some(made(test)),
            None => (held > 0).then(|| made(part(&found.plain, all - held..all))),
        };
        let kept = Kept {
            data: found.plain.identity(),
            scaling: scaling.clone(),
            target_scaling,
            classes,
            names,
            columns: found.columns,
            forms: found.forms,
            target: found.column,
        };
        Ok(Self {
            train: made(part(&found.train, 0..all - held)),
            held_out,
            all: made(found.plain),
            input: found.input,
            target: found.target,
            order,
            about: found.about,
            least_label,
            may_ignore: found.may_ignore && classes.is_some(),
            teaches_nothing,
            notes,
            absent,
            kept,
        })
    }

    /// Returns the shape of an input.
    pub fn input(&self) -> &[i64] {
        &self.input
    }

    /// Returns the shape of a target; empty for a class or a number.
    pub fn target(&self) -> &[i64] {
        &self.target
    }

    /// Returns the mean and standard deviation by which targets [are
    /// scaled](SampleOptions::scale_targets): an output times the deviation, plus the mean, is in the
    /// units of the data.
    pub fn target_scale(&self) -> Option<(f64, f64)> {
        self.kept.target_scaling.one()
    }

    /// Returns the number of classes, if targets are classes.
    pub fn classes(&self) -> Option<usize> {
        self.kept.classes
    }

    /// Returns the class names in order of their numbers, if any.
    pub fn class_names(&self) -> &[String] {
        &self.kept.names
    }

    /// Returns the named classes without samples outside a test part, as far as known without reading
    /// all samples.
    pub fn absent_classes(&self) -> &[String] {
        &self.absent
    }

    /// Explains why nothing can be learned, if all targets are known to be one class.
    pub fn teaches_nothing(&self) -> Option<&str> {
        self.teaches_nothing.as_deref()
    }

    /// Whether some targets may be those that [`SampleOptions::ignore_index`] ignores.
    pub fn may_ignore(&self) -> bool {
        self.may_ignore
    }

    /// Returns the number of training samples.
    pub fn train_len(&self) -> usize {
        self.train.len()
    }

    /// Returns the number of held-out samples.
    pub fn held_out_len(&self) -> usize {
        self.held_out.as_ref().map_or(0, |own| own.len())
    }

    /// Returns the number of samples in [`Samples::in_order`].
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Describes the samples in a few words: `900 images to train on, 100 held out; 3 classes`.
    pub fn describe(&self) -> String {
        let classes = self.kept.classes.map(|own| count(own, "class"));
        let targets = match (classes, &self.kept.target) {
            (Some(classes), Some(column)) => format!("; {classes} of `{column}`"),
            (Some(classes), None) => format!("; {classes}"),
            (None, Some(column)) => format!("; numbers of `{column}`"),
            (None, None) => String::new(),
        };
        let held_out = match self.held_out_len() {
            0 => String::new(),
            held_out => format!(", {held_out} held out"),
        };
        let unused = match self.least_label {
            0 => String::new(),
            least => format!(
                "; labels begin at {least}, and classes are counted from 0: subtract {least} from each \
                 for a model without unused classes"
            ),
        };
        let (len, [one, several]) = (self.train.len(), self.about);
        let about = if len == 1 { one } else { several };
        format!("{len} {about} to train on{held_out}{targets}{unused}")
    }

    /// Returns notes about the samples, such as how columns of a table are read: a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the description that a run saves, for [`SampleOptions::kept`].
    pub fn kept(&self) -> Value {
        json!(self.kept)
    }

    /// Checks that these are the samples of a saved description.
    ///
    /// # Errors
    /// They are other samples.
    pub fn check_same(&self, kept: &Value) -> Result<(), DataError> {
        Kept::read(kept)?.check_same(&self.kept.data)
    }
}

/// Returns a part of a source's items: drawn by the seed if there is one, else in order.
fn part<T: Send + 'static>(
    source: &Arc<dyn Source<Item = T>>,
    range: std::ops::Range<usize>,
    order: Option<u64>,
) -> Arc<dyn Source<Item = T>> {
    let source = Arc::clone(source);
    if range.len() == source.len() {
        return source;
    }
    match order {
        Some(seed) => Arc::new(RandomPart {
            source,
            range,
            seed,
        }),
        None => Arc::new(Range { source, range }),
    }
}
