//! Converts samples to a model's shapes and types.

use std::sync::Arc;

use tch::{Kind, Tensor};

use super::checks::Check;
use super::labels;
use super::scaling::Scaling;
use super::{Pair, Pairs, Samples};
use crate::{DataError, Dataset};
use gpipe_torch::TorchError;

impl Samples {
    /// Returns the samples with inputs and targets reshaped for the model; the count of numbers must
    /// not change.
    ///
    /// # Errors
    /// The counts differ, or dimensions would be mixed up.
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
        let shaped = self.mapped(move |(x, y): Pair| -> anyhow::Result<Pair> {
            Ok((view(&x, &shapes.0)?, view(&y, &shapes.1)?))
        });
        Ok(Self {
            input: input.to_vec(),
            target: target.to_vec(),
            ..shaped
        })
    }

    /// Returns the samples with checks: an invalid number is an error with its place, rather than
    /// undefined for the model or fatal on a GPU.
    #[must_use]
    pub fn checked(&self, input: Check, target: Check) -> Self {
        self.mapped(move |(x, y)| Ok((input.of(x)?, target.of(y)?)))
    }

    fn mapped<F>(&self, function: F) -> Self
    where
        F: Fn(Pair) -> anyhow::Result<Pair> + Clone + Send + Sync + 'static,
    {
        let mapped = |pairs: &Pairs| -> Pairs {
            Arc::new(Dataset::new(Arc::clone(pairs)).map(function.clone()))
        };
        Self {
            train: mapped(&self.train),
            held_out: self.held_out.as_ref().map(mapped),
            all: mapped(&self.all),
            ..self.clone()
        }
    }
}

/// Whether a shape can safely be viewed as another: as a vector, or with dimensions of 1 added or
/// removed.
pub(super) fn can_be(own: &[i64], wanted: &[i64]) -> bool {
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

pub(super) fn view(tensor: &Tensor, shape: &[i64]) -> Result<Tensor, TorchError> {
    if tensor.size() == shape {
        return Ok(tensor.shallow_clone());
    }
    Ok(tensor.f_reshape(shape)?)
}

/// Conversion of targets.
#[derive(Debug, Clone)]
pub(super) enum Targets {
    /// Class numbers below a count, and the ignored number.
    Classes(usize, i64),
    /// Numbers.
    Numbers(Scaling),
}

/// Converts inputs and targets for a model: inputs are scaled, or kept as integers without a scaling.
pub(super) fn converted(
    pairs: Pairs,
    scaling: Option<Scaling>,
    targets: Targets,
    kinds: [Kind; 2],
) -> Pairs {
    let convert = move |(x, y): Pair| -> anyhow::Result<Pair> {
        let x = match &scaling {
            Some(scaling) => scaling.apply(&x, kinds[0])?,
            None => Check::whole("input").of(x)?,
        };
        let y = match &targets {
            Targets::Classes(classes, ignored) => labels::of(&y, *classes, *ignored)?,
            Targets::Numbers(scaling) => scaling.apply(&y, kinds[1])?,
        };
        Ok((x, y))
    };
    Arc::new(Dataset::new(pairs).map(convert))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Made, Source as _};

    /// Doubles were once rounded for a double-precision model.
    #[test]
    fn a_model_of_doubles_gets_all_digits() {
        for scaling in [Scaling::default(), Scaling::from_one(1.7e9, 10.0)] {
            for dimensions in [1, 2] {
                let shape = vec![1_i64; dimensions];
                let number = move || Tensor::from_slice(&[1_700_000_000.125]).view(&shape[..]);
                let pairs = Arc::new(Made::new(1, move |_| Ok((number(), number()))));
                let targets = Targets::Numbers(scaling.clone());
                let made = converted(pairs, Some(scaling.clone()), targets, [Kind::Double; 2]);
                let (x, y) = made.get(0, 0).unwrap();
                let wanted = if scaling.is_none() {
                    1_700_000_000.125
                } else {
                    0.0125
                };
                for own in [x, y] {
                    let value = own.double_value(&vec![0; dimensions]);
                    assert!((value - wanted).abs() < 1e-12, "{value}");
                }
            }
        }
    }
}
