//! TFRecord files of `tf.train.Example`s.

use std::sync::Arc;

use tch::Tensor;

use gpipe_partitioner::words::listed;

use super::found::{Found, Labels};
use super::picture::Picture;
use super::scaling::Usual;
use super::{Pair, SampleOptions, labels};
use crate::{DataError, Example, ExampleError, Phase, Place, Random, Source, TfRecords};
use gpipe_torch::TorchError;

/// Possible names of inputs and targets, by priority.
const NAMES: [[&str; 2]; 3] = [
    ["x", "y"],
    ["image", "label"],
    ["image/encoded", "image/class/label"],
];

/// The examples of a data set.
#[derive(Debug, Clone)]
struct Records {
    all: Arc<TfRecords>,
    names: [String; 2],
    /// Numbers per input, if it is not an image.
    numbers: usize,
    /// Conversion of images.
    picture: Option<([i64; 3], Picture)>,
    seed: Option<u64>,
}

pub(super) fn found(
    train: TfRecords,
    test: Option<TfRecords>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let plain = Records::open(train, options)?;
    let test = test.map(|test| Records::open(test, options)).transpose()?;
    let target = plain.y(0)?;
    let shape = match target.numel() {
        1 => vec![],
        _ => target.size(),
    };
    let labels = if options.classes {
        let all = std::iter::once(&plain).chain(&test);
        let each = all.flat_map(|own| {
            (0..own.len()).map(move |index| {
                let target = own.y(index)?.f_unsqueeze(0)?;
                Ok((target, move |_| own.place(0, index)))
            })
        });
        Labels::Counted(labels::counted(options, each)?)
    } else {
        Labels::Numbers
    };
    let is_image = plain.picture.is_some();
    let train = Records {
        seed: (is_image && options.augment).then_some(options.seed),
        ..plain.clone()
    };
    Ok(Found {
        input: match plain.picture {
            Some((image, _)) => image.to_vec(),
            None => vec![plain.numbers as i64],
        },
        target: shape,
        labels,
        usual: if is_image {
            Usual::ImageNet
        } else {
            Usual::Plain
        },
        may_ignore: true,
        about: ["TFRecord", "TFRecords"],
        plain: Arc::new(plain),
        ..Found::new(train, test)
    })
}

impl Records {
    fn open(records: TfRecords, options: &SampleOptions) -> Result<Self, DataError> {
        let first = Example::decode(&records.get(0, 0)?);
        let place = records.place(0, 0);
        let wrong = |source: ExampleError| DataError::Item {
            place: place.clone(),
            source: source.into(),
        };
        let first = first.map_err(wrong)?;
        let has = |wanted: &str| first.names().any(|name| name == wanted);
        let own = options.input_name().map(|own| [own, NAMES[0][1]]);
        let mut names = own.into_iter().chain(NAMES);
        let names = names.find(|[x, y]| has(x) && has(y));
        let names = names.ok_or_else(|| DataError::Bad {
            place: place.clone(),
            what: format!(
                "the example has no features `x` and `y` (or `image` and `label`); it has {}",
                listed(first.names())
            ),
        })?;
        let is_image = first.byte_string(names[0]).is_ok();
        let (numbers, picture) = if is_image {
            (0, Some(options.picture()?))
        } else {
            (numbers(&first, names[0]).map_err(wrong)?.numel(), None)
        };
        Ok(Self {
            all: Arc::new(records),
            names: names.map(str::to_owned),
            numbers,
            picture,
            seed: None,
        })
    }

    fn example(&self, index: usize) -> Result<Example, DataError> {
        let record = self.all.get(0, index)?;
        let example = Phase::Decode.during(|| Example::decode(&record));
        example.map_err(|error| self.wrong(index, error.into()))
    }

    fn wrong(&self, index: usize, source: anyhow::Error) -> DataError {
        DataError::Item {
            place: self.place(0, index),
            source,
        }
    }

    /// Returns the target of a sample.
    fn y(&self, index: usize) -> Result<Tensor, DataError> {
        let example = self.example(index)?;
        label(&example, &self.names[1]).map_err(|error| self.wrong(index, error))
    }

    fn x(&self, example: &Example, epoch: u64, index: usize) -> anyhow::Result<Tensor> {
        let name = &self.names[0];
        if let Some((_, picture)) = &self.picture {
            let mut random = self.seed.map(|seed| Random::of_item(seed, epoch, index));
            let bytes = example.byte_string(name)?;
            return Phase::Decode.during(|| picture.decode(bytes, random.as_mut()));
        }
        let (numbers, wanted) = (numbers(example, name)?, self.numbers);
        let there = numbers.numel();
        anyhow::ensure!(
            there == wanted,
            "feature `{name}` has {there} numbers, but that of the first example {wanted}"
        );
        Ok(numbers)
    }
}

/// Returns the numbers of a feature.
fn numbers(example: &Example, name: &str) -> Result<Tensor, ExampleError> {
    match example.ints(name) {
        Ok(ints) => Ok(Tensor::from_slice(ints)),
        Err(ExampleError::Kind { .. }) => Ok(Tensor::from_slice(example.floats(name)?)),
        Err(error) => Err(error),
    }
}

/// Returns the numbers of a target; text is rejected.
fn label(example: &Example, name: &str) -> anyhow::Result<Tensor> {
    if let Ok(text) = example.byte_string(name) {
        anyhow::bail!(
            "feature `{name}` is a text (`{}`), and classes are numbers from 0 in TFRecords: write the number of \
             the class, as an int64 list",
            String::from_utf8_lossy(&text[..text.len().min(20)])
        );
    }
    Ok(numbers(example, name)?)
}

impl Source for Records {
    type Item = Pair;

    fn len(&self) -> usize {
        self.all.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Pair, DataError> {
        let example = self.example(index)?;
        let pair = || -> anyhow::Result<Pair> {
            let y = label(&example, &self.names[1])?;
            let y = match y.numel() {
                1 => y.f_reshape([-1; 0]).map_err(TorchError::from)?,
                _ => y,
            };
            Ok((self.x(&example, epoch, index)?, y))
        };
        pair().map_err(|error| self.wrong(index, error))
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.all.place(epoch, index)
    }

    fn identity(&self) -> String {
        self.all.identity()
    }
}
