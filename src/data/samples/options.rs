//! Options for opening samples.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Kind;

use super::kept::Kept;
use super::picture::Picture;
use crate::DataError;

/// How inputs are scaled.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Normalise {
    /// The default by data: columns of a table by their means and standard deviations, images by
    /// ImageNet's, arrays of bytes to 0 to 1, and other arrays unchanged.
    #[default]
    Auto,
    /// No scaling; images are still from 0 to 1.
    None,
    /// By mean and standard deviation of the training samples: of each number if a sample is a vector,
    /// of each channel of `[channels, height, width]`, and of all numbers together if a sample has two
    /// dimensions, such as an image `[height, width]` of one channel.
    Standard,
    /// By ImageNet's mean and standard deviation of each channel.
    ImageNet,
    /// By these means and standard deviations: one pair, or one per channel or number.
    By {
        /// The means.
        mean: Vec<f64>,
        /// The standard deviations.
        std: Vec<f64>,
    },
}

impl FromStr for Normalise {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = |text: &str| -> Option<Vec<f64>> {
            let numbers = text.split(',').map(|own| own.trim().parse::<f64>());
            let numbers = numbers.map(|own| own.ok().filter(|own| own.is_finite()));
            numbers.collect()
        };
        match text.trim() {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            "standard" => return Ok(Self::Standard),
            "imagenet" => return Ok(Self::ImageNet),
            _ => {}
        }
        let both = text.split_once('/');
        let both = both.and_then(|(mean, std)| Some((numbers(mean)?, numbers(std)?)));
        match both {
            Some((mean, std)) if mean.len() == std.len() && std.iter().all(|own| *own > 0.0) => {
                Ok(Self::By { mean, std })
            }
            _ => Err(
                "must be auto, none, standard, imagenet, or means and standard deviations such as \
                 0.5,0.5,0.5/0.25,0.25,0.25"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for Normalise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = |all: &[f64]| {
            let all = all.iter().map(f64::to_string);
            all.collect::<Vec<_>>().join(",")
        };
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Standard => f.write_str("standard"),
            Self::ImageNet => f.write_str("imagenet"),
            Self::By { mean, std } => write!(f, "{}/{}", numbers(mean), numbers(std)),
        }
    }
}

impl TryFrom<String> for Normalise {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Normalise> for String {
    fn from(own: Normalise) -> Self {
        own.to_string()
    }
}

/// How missing cells of a table are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missing {
    /// An error.
    #[default]
    Refuse,
    /// Filled: numbers and dates with the mean of their column, words with none of its words. Each such
    /// column has an additional input, 1 if the cell was missing and else 0. Rows without a target are
    /// left out.
    Fill,
    /// Their rows are left out.
    Drop,
}

impl FromStr for Missing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "refuse" => Ok(Self::Refuse),
            "fill" => Ok(Self::Fill),
            "drop" => Ok(Self::Drop),
            _ => Err("must be refuse, fill or drop".to_owned()),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "refuse",
            Self::Fill => "fill",
            Self::Drop => "drop",
        })
    }
}

/// Options of [`Samples::open`](super::Samples::open).
#[derive(Debug, Clone, PartialEq)]
#[must_use]
#[allow(clippy::struct_excessive_bools, reason = "each is asked for by itself")]
pub struct SampleOptions {
    pub(super) column: Option<String>,
    pub(super) dropped: Vec<String>,
    pub(super) missing: Missing,
    pub(super) scaled_targets: bool,
    pub(super) held_out: f64,
    pub(super) seed: u64,
    pub(super) shuffle: bool,
    pub(super) normalise: Normalise,
    pub(super) classes: bool,
    pub(super) integers: bool,
    pub(super) input: Option<String>,
    pub(super) image: Option<[i64; 3]>,
    pub(super) resize: Option<usize>,
    pub(super) augment: bool,
    pub(super) count: Option<usize>,
    pub(super) ignored: i64,
    /// Types of inputs, and of numeric targets.
    pub(super) kinds: [Kind; 2],
    pub(super) skip_bad: u64,
    pub(super) kept: Option<Kept>,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self {
            column: None,
            dropped: Vec::new(),
            missing: Missing::Refuse,
            scaled_targets: false,
            held_out: 0.1,
            seed: 0,
            shuffle: true,
            normalise: Normalise::Auto,
            classes: true,
            integers: false,
            input: None,
            image: Some([3, 224, 224]),
            resize: None,
            augment: true,
            count: None,
            ignored: IGNORED,
            kinds: [Kind::Float; 2],
            skip_bad: 0,
            kept: None,
        }
    }
}

impl SampleOptions {
    /// Sets the target column of a table; the last by default.
    pub fn target(mut self, column: impl Into<String>) -> Self {
        self.column = Some(column.into());
        self
    }

    /// Sets columns that are neither inputs nor the target, such as row numbers.
    pub fn drop_columns(mut self, columns: impl IntoIterator<Item = String>) -> Self {
        self.dropped = columns.into_iter().collect();
        self
    }

    /// Sets the handling of missing cells.
    pub fn missing(mut self, what: Missing) -> Self {
        self.missing = what;
        self
    }

    /// Also scales the [numeric](SampleOptions::numbers) targets of a table whose inputs are scaled by
    /// their statistics, by mean and standard deviation of the training samples: see
    /// [`Samples::target_scale`](super::Samples::target_scale). By default targets are not scaled.
    pub fn scale_targets(mut self) -> Self {
        self.scaled_targets = true;
        self
    }

    /// Sets the share of held-out samples for data without a test part, a tenth by default; 0 holds out
    /// none. They are drawn by the seed, or are the last ones without [`SampleOptions::shuffle`].
    pub fn held_out(mut self, share: f64) -> Self {
        self.held_out = share;
        self
    }

    /// Sets the seed of held-out samples, of each epoch's order, and of image crops.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether each epoch is shuffled, as by default; otherwise samples come in the order of the data.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Seed of the order; `None` for the order of the data.
    pub(super) fn order(&self) -> Option<u64> {
        self.shuffle.then_some(self.seed)
    }

    /// Sets the scaling of inputs.
    pub fn normalise(mut self, how: Normalise) -> Self {
        self.normalise = how;
        self
    }

    /// Makes targets numbers, as in a regression; by default they are classes.
    pub fn numbers(mut self) -> Self {
        self.classes = false;
        self
    }

    /// Makes inputs integers, such as tokens or counts; by default they become floats.
    pub fn integers(mut self) -> Self {
        self.integers = true;
        self
    }

    /// Sets an alternative to `x` as the name of the input array.
    pub fn input(mut self, name: impl Into<String>) -> Self {
        self.input = Some(name.into());
        self
    }

    pub(super) fn input_name(&self) -> Option<&str> {
        self.input.as_deref()
    }

    /// Sets the final size of images, 3 × 224 × 224 by default. They have one or three channels.
    pub fn image(mut self, channels: i64, height: i64, width: i64) -> Self {
        self.image = Some([channels, height, width]);
        self
    }

    /// Rejects images, for a model that takes none.
    pub fn no_images(mut self) -> Self {
        self.image = None;
        self
    }

    /// Sets the shorter side that images are scaled to before cropping; by default an eighth more than
    /// the crop.
    pub fn resize(mut self, side: usize) -> Self {
        self.resize = Some(side);
        self
    }

    /// Whether images are cropped and flipped at random for training, as by default.
    pub fn augment(mut self, augment: bool) -> Self {
        self.augment = augment;
        self
    }

    /// Sets the number of classes; by default they are counted, which reads all targets.
    pub fn classes(mut self, count: usize) -> Self {
        self.count = Some(count);
        self
    }

    /// Sets the target number that is not a class and that loss functions ignore if configured so; -100
    /// by default, as in PyTorch.
    pub fn ignore_index(mut self, index: i64) -> Self {
        self.ignored = index;
        self
    }

    /// Sets the types of inputs and targets to double precision where given so, for a model that
    /// computes in it.
    pub fn kinds(mut self, kinds: [Kind; 2]) -> Self {
        self.kinds = kinds.map(|kind| match kind {
            Kind::Double => kind,
            _ => Kind::Float,
        });
        self
    }

    /// Opens the data although up to so many images are unreadable, none by default: for loaders that
    /// [skip](crate::Batches::skip_bad) as many.
    pub fn skip_bad(mut self, images: u64) -> Self {
        self.skip_bad = images;
        self
    }

    /// Takes class names, columns and scales from the description that an earlier run
    /// [saved](super::Samples::kept), rather than from the data.
    ///
    /// # Errors
    /// The description is invalid.
    pub fn kept(mut self, kept: &Value) -> Result<Self, DataError> {
        self.kept = Some(Kept::read(kept)?);
        Ok(self)
    }

    /// Whether columns of a table are scaled by statistics of the training samples.
    pub(super) fn scales_by_statistics(&self) -> bool {
        matches!(self.normalise, Normalise::Auto | Normalise::Standard)
    }

    /// Returns the size and the conversion of images.
    pub(super) fn picture(&self) -> Result<([i64; 3], Picture), DataError> {
        let image = self.image.ok_or_else(|| {
            let what =
                "images are for models that take floats, [channels, height, width] of 1 channel or 3";
            DataError::Settings(what.to_owned())
        })?;
        Ok((image, Picture::new(image, self.resize)))
    }

    pub(super) fn check(&self) -> Result<(), DataError> {
        let wrong = |what: String| Err(DataError::Settings(what));
        if !(0.0..1.0).contains(&self.held_out) {
            return wrong(format!(
                "a share of {} cannot be held out: it is from 0 to below 1",
                self.held_out
            ));
        }
        if let (false, Some(count)) = (self.classes, self.count) {
            return wrong(format!(
                "{count} classes are given, but targets are numbers: leave out one of both"
            ));
        }
        if self.integers && self.missing == Missing::Fill {
            return wrong(
                "the model takes whole numbers, and a mean is none: leave rows out with --missing drop"
                    .to_owned(),
            );
        }
        let Some([channels, height, width]) = self.image else {
            return Ok(());
        };
        if ![1, 3].contains(&channels) || !(1..=MOST_SIDE).contains(&height.min(width)) {
            return wrong(format!(
                "images have 1 channel or 3 and sides from 1 to {MOST_SIDE}, not \
                 {channels} and {height} × {width}"
            ));
        }
        if height.max(width) > MOST_SIDE || self.resize.is_some_and(|own| own as i64 > MOST_SIDE) {
            return wrong(format!("images have sides of at most {MOST_SIDE}"));
        }
        if let Some(resize) = self.resize
            && (resize as i64) < height.min(width)
        {
            return wrong(format!(
                "images that are scaled to {resize} cannot be cropped to {height} × {width}"
            ));
        }
        Ok(())
    }
}

/// The target ignored by losses, as in PyTorch.
const IGNORED: i64 = -100;
/// Upper bound of an image's side.
const MOST_SIDE: i64 = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_normalise_are_read_as_they_are_written() {
        for text in [
            "auto",
            "none",
            "standard",
            "imagenet",
            "0.5,0.25/1,2.5",
            "0/1",
        ] {
            assert_eq!(text.parse::<Normalise>().unwrap().to_string(), text);
        }
        for text in ["", "mean", "1/0", "1,2/3", "nan/1", "1/-1", "1/2/3"] {
            assert!(text.parse::<Normalise>().is_err(), "{text}");
        }
    }
}
