//! Samples to learn from: inputs and targets of one kind or another, the same way for all.
//!
//! 1. A path's kind is found, and with it shapes, classes and a test part ([`found`]).
//! 2. Where there is no test part, some samples are held out.
//! 3. Inputs are scaled, by the statistics of what is trained on where that is asked for.
//!
//! What of this depends on the data is kept with a run: names and order of classes, columns,
//! scales. A later run on other files of the kind takes these, so that a number means the same.

mod found;
mod images;
mod kept;
mod kinds;
mod labels;
mod numbers;
mod options;
mod picture;
mod records;
mod scaling;
mod table;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::{Batches, DataError, Dataset, RandomPart, Source};
use crate::TorchError;

pub use options::{Normalise, SampleOptions};

use found::{Found, Labels};
use kept::Kept;
use scaling::Scaling;

/// An input and its target.
type Pair = (Tensor, Tensor);
/// Samples of whatever source.
type Pairs = Arc<dyn Source<Item = Pair>>;

/// Samples to train on, and some that are held out.
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
    /// All, in their order.
    all: Pairs,
    input: Vec<i64>,
    target: Vec<i64>,
    seed: u64,
    about: &'static str,
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
    /// It is none of these; something in it is damaged, missing or does not go together: where,
    /// and what to do.
    pub fn open(path: &Path, options: &SampleOptions) -> Result<Self, DataError> {
        options.check()?;
        let found = kinds::found(path, options)?;
        if found.train.is_empty() {
            return Err(DataError::bad_path(path, "there is no sample in it"));
        }
        Self::of_found(found, options)
    }

    /// Whether a path is of a kind that [`Samples::open`] knows: not a text, or a file of tokens.
    ///
    /// # Errors
    /// There is nothing there, or it cannot be read.
    pub fn known(path: &Path) -> Result<bool, DataError> {
        Ok(kinds::kind(path)?.is_some())
    }

    /// Those of an own source of inputs and targets, and of another one that is not trained on.
    /// Where there is no other one, some are held out as the options say. Inputs become floats
    /// (integers, where the options say so), and targets that are classes integers.
    ///
    /// # Errors
    /// The first sample cannot be made; there is none; targets are no classes.
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
            let targets =
                all.flat_map(|own| (0..own.len()).map(move |index| Ok(own.get(0, index)?.1)));
            Labels::Counted(labels::count(options, targets)?)
        } else {
            Labels::Numbers
        };
        let train: Pairs = Arc::new(train);
        let found = Found {
            input: x.size(),
            target: y.size(),
            labels,
            test: held_out.map(|own| Arc::new(own) as Pairs),
            ..Found::new(train, None)
        };
        Self::of_found(found, options)
    }

    fn of_found(found: Found, options: &SampleOptions) -> Result<Self, DataError> {
        let (classes, names) = match found.labels {
            Labels::Named(names) => (Some(names.len()), names),
            Labels::Counted(count) => (Some(count), Vec::new()),
            Labels::Numbers => (None, Vec::new()),
        };
        let (all, seed) = (found.plain.len(), options.seed);
        let held = match found.test {
            Some(_) => 0,
            None => (all as f64 * options.held_out) as usize,
        };
        let part = |source: &Pairs, range: std::ops::Range<usize>| -> Pairs {
            if range.len() == all {
                return Arc::clone(source);
            }
            let source = Arc::clone(source);
            Arc::new(RandomPart {
                source,
                range,
                seed,
            })
        };
        let scaling = match &options.kept {
            Some(kept) => {
                kept.scaling.check(&found.input)?;
                kept.scaling.clone()
            }
            None if options.integers => Scaling::default(),
            None => {
                let plain = floats(&part(&found.plain, 0..all - held));
                Scaling::choose(&options.normalise, found.usual, &found.input, &plain)?
            }
        };
        let made = |pairs: Pairs| converted(pairs, options.integers, scaling.clone(), classes);
        let held_out = match found.test {
            Some(test) => Some(made(test)),
            None => (held > 0).then(|| made(part(&found.plain, all - held..all))),
        };
        let kept = Kept {
            data: found.plain.identity(),
            scaling: scaling.clone(),
            classes,
            names,
            columns: found.columns,
            target: found.column,
        };
        Ok(Self {
            train: made(part(&found.train, 0..all - held)),
            held_out,
            all: made(found.plain),
            input: found.input,
            target: found.target,
            seed,
            about: found.about,
            kept,
        })
    }

    /// The shape of an input.
    pub fn input(&self) -> &[i64] {
        &self.input
    }

    /// The shape of a target: none, where it is a class or a number.
    pub fn target(&self) -> &[i64] {
        &self.target
    }

    /// How many classes there are, where targets are classes.
    pub fn classes(&self) -> Option<usize> {
        self.kept.classes
    }

    /// The names of the classes, in the order of their numbers, where they have any.
    pub fn class_names(&self) -> &[String] {
        &self.kept.names
    }

    /// How many samples are trained on.
    pub fn train_len(&self) -> usize {
        self.train.len()
    }

    /// How many samples are held out.
    pub fn held_out_len(&self) -> usize {
        self.held_out.as_ref().map_or(0, |own| own.len())
    }

    /// The same with inputs and targets of other shapes that have as many numbers, for the model
    /// that takes these.
    ///
    /// # Errors
    /// They have not as many, or the dimensions would be mixed up.
    pub fn shaped(&self, input: &[i64], target: &[i64]) -> Result<Self, DataError> {
        let fits = |what: &str, own: &[i64], wanted: &[i64]| {
            if can_be(own, wanted) {
                return Ok(());
            }
            Err(DataError::Settings(format!(
                "its {what} have the shape {own:?}, and {wanted:?} is needed"
            )))
        };
        fits("inputs", &self.input, input)?;
        fits("targets", &self.target, target)?;
        let shapes = (input.to_vec(), target.to_vec());
        let view = |pairs: &Pairs| -> Pairs {
            let (input, target) = shapes.clone();
            let view = move |(x, y): Pair| -> anyhow::Result<Pair> {
                Ok((view(&x, &input)?, view(&y, &target)?))
            };
            Arc::new(Dataset::new(Arc::clone(pairs)).map(view))
        };
        Ok(Self {
            train: view(&self.train),
            held_out: self.held_out.as_ref().map(view),
            all: view(&self.all),
            input: input.to_vec(),
            target: target.to_vec(),
            ..self.clone()
        })
    }

    /// The same, where an input that is not a whole number from 0 to below `count` is an error with
    /// its place: to a model it would be none, or its end on a GPU.
    pub(crate) fn inputs_below(&self, count: usize) -> Self {
        let below = |pairs: &Pairs| -> Pairs {
            let check = move |(x, y): Pair| Ok((labels::below(x, count, "input")?, y));
            Arc::new(Dataset::new(Arc::clone(pairs)).map(check))
        };
        Self {
            train: below(&self.train),
            held_out: self.held_out.as_ref().map(below),
            all: below(&self.all),
            ..self.clone()
        }
    }

    /// The same with numbers of other kinds.
    pub(crate) fn of_kinds(&self, input: Kind, target: Kind) -> Self {
        let cast = |pairs: &Pairs| -> Pairs {
            let cast = move |(x, y): Pair| -> anyhow::Result<Pair> {
                Ok((x.f_to_kind(input)?, y.f_to_kind(target)?))
            };
            Arc::new(Dataset::new(Arc::clone(pairs)).map(cast))
        };
        Self {
            train: cast(&self.train),
            held_out: self.held_out.as_ref().map(cast),
            all: cast(&self.all),
            ..self.clone()
        }
    }

    /// Batches to train on, without end: all samples of an epoch in another order each time, whole
    /// batches alone.
    pub fn batches(&self, size: usize) -> Batches<impl Source, (Tensor, Tensor)> {
        let train = Dataset::new(Arc::clone(&self.train)).shuffle(usize::MAX, self.seed);
        train.batch(size).drop_last().endless()
    }

    /// Batches of what is held out, once, where something is.
    pub fn held_out(&self, size: usize) -> Option<Batches<impl Source, (Tensor, Tensor)>> {
        let held_out = self.held_out.as_ref()?;
        Some(Dataset::new(Arc::clone(held_out)).batch(size))
    }

    /// Batches of all samples but those of a test part, in their order, without anything random.
    pub fn in_order(&self, size: usize) -> Batches<impl Source, (Tensor, Tensor)> {
        Dataset::new(Arc::clone(&self.all)).batch(size)
    }

    /// How many samples [`Samples::in_order`] has.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What they are, in a few words: `900 images of 3 classes, 100 held out`.
    pub fn describe(&self) -> String {
        let classes = self.kept.classes;
        let classes = classes.map_or_else(String::new, |own| format!(" of {own} classes"));
        let held_out = match self.held_out_len() {
            0 => String::new(),
            held_out => format!(", {held_out} held out"),
        };
        format!("{} {}{classes}{held_out}", self.train.len(), self.about)
    }

    /// What a run keeps of its data, for [`SampleOptions::kept`].
    pub fn kept(&self) -> Value {
        json!(self.kept)
    }

    /// That these are the samples that what was kept is of.
    ///
    /// # Errors
    /// They are others.
    pub fn check_same(&self, kept: &Value) -> Result<(), DataError> {
        let (saved, here) = (Kept::read(kept)?.data, self.kept.data.clone());
        if saved == here {
            return Ok(());
        }
        Err(DataError::OtherData { saved, here })
    }
}

/// Whether numbers of one shape are those of another without a thought: those of a row, or the same
/// but for dimensions of 1.
fn can_be(own: &[i64], wanted: &[i64]) -> bool {
    let long = |shape: &[i64]| -> Vec<i64> {
        let sides = shape.iter().copied();
        sides.filter(|side| *side != 1).collect()
    };
    let count = |shape: &[i64]| {
        let sides = shape.iter();
        sides.fold(1_i64, |product, side| product.saturating_mul(*side))
    };
    long(own) == long(wanted) || (wanted.len() == 1 && count(own) == wanted[0])
}

fn view(tensor: &Tensor, shape: &[i64]) -> Result<Tensor, TorchError> {
    if tensor.size() == shape {
        return Ok(tensor.shallow_clone());
    }
    Ok(tensor.f_reshape(shape)?)
}

/// Inputs as floats, for their statistics.
fn floats(pairs: &Pairs) -> Pairs {
    let pairs = Dataset::new(Arc::clone(pairs));
    Arc::new(pairs.map(|(x, y)| Ok((x.f_to_kind(Kind::Float)?, y))))
}

/// Inputs and targets as a model takes them.
fn converted(pairs: Pairs, integers: bool, scaling: Scaling, classes: Option<usize>) -> Pairs {
    let convert = move |(x, y): Pair| -> anyhow::Result<Pair> {
        let x = if integers {
            labels::whole(&x)
                .map_err(|_| anyhow::anyhow!("an input is no whole number from 0 up"))?
        } else {
            scaling.apply(x.f_to_kind(Kind::Float)?)?
        };
        let y = match classes {
            Some(classes) => labels::of(&y, classes)?,
            None => y.f_to_kind(Kind::Float)?,
        };
        Ok((x, y))
    };
    Arc::new(Dataset::new(pairs).map(convert))
}
