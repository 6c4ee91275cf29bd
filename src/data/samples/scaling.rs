//! Scaling of inputs and targets.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tch::{Kind, TchError, Tensor};

use super::moments::Moments;
use super::{Normalise, Pairs};
use crate::{DataError, Dataset, Source as _, Stack};
use gpipe_torch::TorchError;

/// Mean and standard deviation per channel of ImageNet's training images, scaled to 0 to 1.
const IMAGENET: ([f64; 3], [f64; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
/// Mean and standard deviation of greyscale images.
const IMAGENET_GREY: (f64, f64) = (0.449, 0.226);
/// Number of samples per block of statistics.
const BLOCK: usize = 256;

/// Meaning of [`Normalise::Auto`] for a kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usual {
    /// No scaling.
    Plain,
    /// To 0 to 1.
    Bytes,
    /// By statistics of the training samples.
    Standard,
    /// By ImageNet's statistics.
    ImageNet,
}

/// Scaling of inputs: divides, subtracts the mean, and divides by the standard deviation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scaling {
    divisor: f64,
    /// One per number of a vector or per channel, one for all, or none.
    mean: Vec<f64>,
    std: Vec<f64>,
    /// Whether NaN is replaced with the mean of the others, or with 0 if there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    fills: bool,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            divisor: 1.0,
            mean: Vec::new(),
            std: Vec::new(),
            fills: false,
        }
    }
}

impl Scaling {
    /// Whether nothing is changed.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the common mean and standard deviation of all numbers, if any.
    pub(super) fn one(&self) -> Option<(f64, f64)> {
        match (&self.mean[..], &self.std[..]) {
            (&[mean], &[std]) => Some((mean, std)),
            _ => None,
        }
    }

    /// Makes a scaling with a common mean and standard deviation.
    #[cfg(test)]
    pub(super) fn from_one(mean: f64, std: f64) -> Self {
        Self {
            mean: vec![mean],
            std: vec![std],
            ..Self::default()
        }
    }

    /// Returns the scaling of numeric targets of this shape, by the training samples.
    ///
    /// # Errors
    /// A sample cannot be read.
    pub(super) fn of_targets(shape: &[i64], train: Pairs) -> Result<Self, DataError> {
        let turned = Dataset::new(train).map(|(x, y)| -> anyhow::Result<_> { Ok((y, x)) });
        let turned: Pairs = Arc::new(turned);
        Self::of(&turned, shape, false)
    }

    /// Whether the values are valid, wherever they come from.
    pub(super) fn can_be(&self) -> bool {
        let finite = self.mean.iter().all(|own| own.is_finite());
        let positive = |own: &f64| own.is_finite() && *own > 0.0;
        let stds = self.std.iter().chain([&self.divisor]).all(positive);
        finite && stds && self.mean.len() == self.std.len()
    }

    /// Returns the requested scaling of samples of this shape; `train` are the training samples.
    ///
    /// # Errors
    /// A sample cannot be read, or the count of numbers does not match the shape.
    pub(super) fn choose(
        how: &Normalise,
        (usual, fills): (Usual, bool),
        shape: &[i64],
        train: &Pairs,
    ) -> Result<Self, DataError> {
        let own = match (how, usual) {
            (Normalise::None, _) | (Normalise::Auto, Usual::Plain) => Self::default(),
            (Normalise::Auto, Usual::Bytes) => Self {
                divisor: 255.0,
                ..Self::default()
            },
            (Normalise::Standard, _) | (Normalise::Auto, Usual::Standard) => {
                Self::of(train, shape, fills)?
            }
            (Normalise::ImageNet, _) | (Normalise::Auto, Usual::ImageNet) => {
                Self::imagenet(usual, shape)?
            }
            (Normalise::By { mean, std }, _) => Self {
                divisor: 1.0,
                mean: mean.clone(),
                std: std.clone(),
                ..Self::default()
            },
        };
        own.check(shape)?;
        Ok(Self { fills, ..own })
    }

    /// By ImageNet's channels, or by their mean for images of one channel, whose channel dimension may
    /// be missing.
    fn imagenet(usual: Usual, shape: &[i64]) -> Result<Self, DataError> {
        let (mean, std) = match shape {
            [1, _, _] | [_, _] => (vec![IMAGENET_GREY.0], vec![IMAGENET_GREY.1]),
            [3, _, _] => (IMAGENET.0.to_vec(), IMAGENET.1.to_vec()),
            _ => {
                return Err(DataError::Settings(format!(
                    "ImageNet's means are for images, [height, width] or [channels, height, width] \
                     of one channel or three, but a sample is {shape:?}: put the channels first, or \
                     normalise by `standard` or by numbers of its own"
                )));
            }
        };
        let divisor = if usual == Usual::Bytes { 255.0 } else { 1.0 };
        Ok(Self {
            divisor,
            mean,
            std,
            fills: false,
        })
    }

    /// Checks that the scaling fits samples of this shape.
    pub(super) fn check(&self, shape: &[i64]) -> Result<(), DataError> {
        let there = self.mean.len();
        let wanted = shape.first().copied().unwrap_or(1);
        if there <= 1 || there as i64 == wanted {
            return Ok(());
        }
        Err(DataError::Settings(format!(
            "{there} means are given to normalise by, but a sample of {shape:?} needs one, or \
             {wanted}"
        )))
    }

    /// Returns mean and standard deviation of samples; NaNs are left out if they are to be filled.
    fn of(samples: &Pairs, shape: &[i64], fills: bool) -> Result<Self, DataError> {
        let mut all: Vec<Moments> = Vec::new();
        for start in (0..samples.len()).step_by(BLOCK) {
            let block = start..samples.len().min(start + BLOCK);
            let rows = block.map(|index| Ok(samples.get(0, index)?.0));
            let rows = rows.collect::<Result<Vec<_>, DataError>>()?;
            let stacked = <Tensor as Stack>::stack(rows).map_err(|source| DataError::Batch {
                first: samples.place(0, start),
                source,
            })?;
            let own = moments(&stacked, shape, fills)?;
            if own.iter().any(|own| !own.mean.is_finite()) {
                let at = not_finite(&stacked)?.map_or(start, |row| start + row);
                return Err(DataError::Settings(format!(
                    "{}: it has numbers that are NaN or infinite, and so would be the mean that all are \
                     scaled by: leave it out",
                    samples.place(0, at)
                )));
            }
            all.resize(own.len(), Moments::default());
            for (all, own) in all.iter_mut().zip(own) {
                all.join(own);
            }
        }
        Ok(Self {
            divisor: 1.0,
            mean: all.iter().map(|own| own.mean).collect(),
            std: all.iter().map(Moments::deviation).collect(),
            fills,
        })
    }

    /// Scales numbers and converts them to the model's type; computes in double precision if single
    /// precision cannot hold each number.
    pub(super) fn apply(&self, x: &Tensor, to: Kind) -> Result<Tensor, TorchError> {
        let kind = if is_single(x.kind()) {
            to
        } else {
            Kind::Double
        };
        match (x.dim(), x.kind()) {
            (1, Kind::Float) => self.apply_to_row(Vec::<f32>::try_from(x)?, to),
            (1, _) => self.apply_to_row(Vec::<f64>::try_from(x)?, to),
            _ => Ok(self.apply_to_any(x.f_to_kind(kind)?)?.f_to_kind(to)?),
        }
    }

    /// Scales a row in double precision, faster than libtorch for few numbers.
    fn apply_to_row(&self, row: Vec<impl Into<f64>>, to: Kind) -> Result<Tensor, TorchError> {
        let last = self.mean.len().saturating_sub(1);
        let scaled = |(place, number): (usize, f64)| {
            let number = number / self.divisor;
            let mean = self.mean.get(place.min(last));
            if self.fills && number.is_nan() {
                return 0.0;
            }
            match mean {
                Some(mean) => (number - mean) / self.std[place.min(last)],
                None => number,
            }
        };
        let row = row.into_iter().map(Into::into).enumerate().map(scaled);
        Ok(match to {
            Kind::Double => Tensor::f_from_slice(&row.collect::<Vec<_>>())?,
            _ => Tensor::f_from_slice(&row.map(|own| own as f32).collect::<Vec<_>>())?,
        })
    }

    fn apply_to_any(&self, x: Tensor) -> Result<Tensor, TorchError> {
        let mut x = x;
        if self.divisor.total_cmp(&1.0).is_ne() {
            x = x.f_div_scalar(self.divisor)?;
        }
        if self.mean.is_empty() {
            return Ok(x);
        }
        let along = |values: &[f64]| -> Result<Tensor, TorchError> {
            let values = Tensor::f_from_slice(values)?.f_to_kind(x.kind())?;
            let dims = x.dim().max(1);
            let mut shape = vec![1; dims];
            shape[0] = values.numel() as i64;
            Ok(values.f_reshape(&shape)?)
        };
        Ok(x.f_sub(&along(&self.mean)?)?.f_div(&along(&self.std)?)?)
    }
}

/// Whether single precision holds all numbers of a type.
pub(super) fn is_single(kind: Kind) -> bool {
    use Kind::{BFloat16, Bool, Float, Half, Int8, Int16, Uint8};
    matches!(kind, Float | Half | BFloat16 | Uint8 | Int8 | Int16 | Bool)
}

/// Returns the first sample of `[samples, …]` with a NaN or infinite value.
pub fn not_finite(samples: &Tensor) -> Result<Option<usize>, TchError> {
    let rows = samples.size().first().copied().unwrap_or(0);
    if rows == 0 || samples.numel() == 0 {
        return Ok(None);
    }
    let finite = samples.f_isfinite()?.f_reshape([rows, -1])?;
    let each = finite.f_all_dim(1, false)?;
    let each = Vec::<bool>::try_from(&each)?;
    Ok(each.iter().position(|finite| !finite))
}

/// Returns the number of means and deviations for samples of this shape: one per number of a vector,
/// one per channel of `[channels, height, width]` or `[channels, …]` of more dimensions, and one for
/// all of `[height, width]` (a single channel) or `[time, features]`.
fn places(shape: &[i64]) -> i64 {
    match shape {
        [_, _] => 1,
        _ => shape.first().copied().unwrap_or(1).max(1),
    }
}

/// Returns the moments of each of a sample's [`places`], without NaNs if there are gaps.
fn moments(stacked: &Tensor, shape: &[i64], gaps: bool) -> Result<Vec<Moments>, TorchError> {
    let places = places(shape);
    let samples = stacked.size()[0];
    let rows = stacked.f_to_kind(Kind::Double)?;
    let rows = rows.f_reshape([samples, places, -1])?.f_transpose(0, 1)?;
    let rows = rows.f_reshape([places, -1])?;
    let numbers = |tensor: &Tensor| -> Result<Vec<f64>, TorchError> {
        Ok(Vec::<f64>::try_from(tensor.f_reshape([-1])?)?)
    };
    if gaps {
        let rows = (0..places).map(|place| {
            let row = numbers(&rows.f_get(place)?)?;
            let mut own = Moments::default();
            for number in row.into_iter().filter(|own| !own.is_nan()) {
                own.join(Moments::of_one(number));
            }
            Ok(own)
        });
        return rows.collect();
    }
    let mean = rows.f_mean_dim(1, true, Kind::Double)?;
    let apart = rows.f_sub(&mean)?;
    let squares = apart
        .f_mul(&apart)?
        .f_sum_dim_intlist(1, false, Kind::Double)?;
    let count = rows.size()[1] as f64;
    let both = numbers(&mean)?.into_iter().zip(numbers(&squares)?);
    let own = both.map(|(mean, squares)| Moments {
        count,
        mean,
        squares,
    });
    Ok(own.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results must not depend on which code scales a row.
    #[test]
    fn a_row_has_the_bits_of_libtorchs_functions_of_doubles() {
        tch::manual_seed(3);
        let row = Tensor::randn([37], (Kind::Double, tch::Device::Cpu)) * 1e3;
        let numbers = |count: i64, least: f64| -> Vec<f64> {
            let all = Tensor::rand([count], (Kind::Double, tch::Device::Cpu)) * 100.0 + least;
            Vec::try_from(all).unwrap()
        };
        for divisor in [1.0, 255.0, 0.3] {
            for count in [0, 1, 37] {
                let own = Scaling {
                    divisor,
                    mean: numbers(count, -50.0),
                    std: numbers(count, 0.01),
                    fills: false,
                };
                let slow = own.apply_to_any(row.copy()).unwrap();
                for kind in [Kind::Float, Kind::Double] {
                    let fast = own.apply(&row, kind).unwrap();
                    assert_eq!(fast, slow.to_kind(kind), "{own:?}");
                }
            }
        }
    }

    /// Unix times came in steps of 128 seconds, as they were rounded before centring.
    #[test]
    fn large_numbers_are_centred_before_they_are_rounded() {
        let times = [1_700_000_000_i64, 1_700_000_010, 1_700_000_020];
        let own = Scaling::from_one(1_700_000_010.0, 10.0);
        let row = Tensor::from_slice(&times);
        for kind in [Kind::Int64, Kind::Double] {
            for shape in [&[3][..], &[1, 3], &[3, 1]] {
                let scaled = own
                    .apply(&row.to_kind(kind).view(shape), Kind::Float)
                    .unwrap();
                assert_eq!(scaled.kind(), Kind::Float);
                let scaled = Vec::<f64>::try_from(scaled.view(-1)).unwrap();
                assert_eq!(scaled, [-1.0, 0.0, 1.0], "{kind:?} {shape:?}");
            }
        }
    }

    /// Otherwise 0.1 + 0.2 among many 0.3 would be a column of two distant values.
    #[test]
    fn differences_of_the_last_digit_are_none() {
        let mut all = Moments::default();
        for number in [0.3, 0.1 + 0.2, 0.3, 0.3] {
            all.join(Moments::of_one(number));
        }
        assert!(all.squares > 0.0);
        assert!((all.deviation() - 1.0).abs() < f64::EPSILON);
        let mut times = Moments::default();
        times.join(Moments::of_one(1.7e9));
        times.join(Moments::of_one(1.7e9 + 0.001));
        assert!((times.deviation() - 0.0005).abs() < 1e-6);
    }
}
