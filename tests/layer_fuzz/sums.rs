//! The plain loop's handling of gradients and outputs.

use anyhow::Result;
use gpipe::tch::Tensor;

use crate::record::Gradients;

/// Takes a parameter's gradient of a step, leaving -0 in each element: tch cannot remove it, and -0 plus
/// anything is the latter.
pub(crate) fn taken(parameter: &Tensor, first_step: bool) -> Option<Tensor> {
    let mut gradient = parameter.grad();
    if !gradient.defined() || (!first_step && is_nothing(&gradient)) {
        return None;
    }
    let own = gradient.copy();
    let _ = gradient.fill_(-0.0);
    Some(own)
}

fn is_nothing(gradient: &Tensor) -> bool {
    let zeros = gradient.eq(0.0).logical_and(&gradient.signbit());
    bool::try_from(zeros.all()).unwrap()
}

/// Joins parts along dimension 0; a value absent in any part is absent. `None` if some cannot be joined.
pub(crate) fn joined(parts: &[Vec<Option<Tensor>>]) -> Option<Vec<Option<Tensor>>> {
    let width = parts.first().map_or(0, Vec::len);
    let columns = (0..width).map(|column| {
        let values: Option<Vec<_>> = parts.iter().map(|part| part[column].as_ref()).collect();
        let Some(values) = values else {
            return Some(None);
        };
        if values.len() == 1 {
            return Some(Some(values[0].copy()));
        }
        Tensor::f_cat(&values, 0).ok().map(Some)
    });
    columns.collect()
}

/// The gradients of parts, with zeros where nothing depends on a part and other parts have one.
pub(crate) fn with_zeros(parts: Vec<Vec<(Option<Tensor>, Tensor)>>) -> Vec<Vec<Option<Tensor>>> {
    let width = parts.first().map_or(0, Vec::len);
    let has = |column: usize| parts.iter().any(|part| part[column].0.is_some());
    let some: Vec<bool> = (0..width).map(has).collect();
    let filled = |part: Vec<(Option<Tensor>, Tensor)>| {
        let pairs = part.into_iter().zip(&some);
        pairs
            .map(|((gradient, zeros), some)| gradient.or_else(|| some.then_some(zeros)))
            .collect()
    };
    parts.into_iter().map(filled).collect()
}

/// Adds a step's gradients to those of earlier steps.
pub(crate) fn added(earlier: Gradients, step: Gradients) -> Result<Gradients> {
    let pairs = earlier.into_iter().zip(step);
    let sums = pairs.map(|((name, before), (_, new))| {
        let sum = match (before, new) {
            (Some(before), Some(new)) => Some(before.f_add(&new)?),
            (before, new) => before.or(new),
        };
        Ok((name, sum))
    });
    sums.collect()
}

pub(crate) fn copied(gradients: &Gradients) -> Gradients {
    let copy =
        |(name, value): &(String, Option<Tensor>)| (name.clone(), value.as_ref().map(Tensor::copy));
    gradients.iter().map(copy).collect()
}
