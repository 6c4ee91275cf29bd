//! Targets that are classes.

use tch::{Kind, Tensor};

use super::SampleOptions;
use super::kept::MOST_CLASSES;
use crate::data::DataError;

/// How many classes there are: those of the options, or one more than the largest target, for
/// which all are read.
///
/// # Errors
/// One cannot be read, or is no class.
pub(super) fn count(
    options: &SampleOptions,
    targets: impl Iterator<Item = Result<Tensor, DataError>>,
) -> Result<usize, DataError> {
    let known = options.kept.as_ref().and_then(|kept| kept.classes);
    if let Some(count) = options.count.or(known) {
        return Ok(count);
    }
    let mut most = 0;
    for target in targets {
        let target = target?;
        if target.numel() == 0 {
            continue;
        }
        let classes = whole(&target, options.ignored).map_err(DataError::Settings)?;
        let ignored = classes.f_eq(options.ignored)?;
        let classes = classes.f_masked_fill(&ignored, -1)?;
        let largest = classes.f_max()?.f_int64_value(&[])?;
        most = most.max(largest.saturating_add(1));
    }
    usize::try_from(most)
        .ok()
        .filter(|most| *most <= MOST_CLASSES)
        .ok_or_else(|| DataError::Settings(format!("a target is {}, which is no class", most - 1)))
}

/// Targets as the numbers of classes, with one number that losses leave out.
///
/// # Errors
/// One is no whole number, or below 0 and not what losses leave out.
pub(super) fn whole(target: &Tensor, ignored: i64) -> Result<Tensor, String> {
    let whole = || -> Result<(Tensor, bool, bool), tch::TchError> {
        let classes = target.f_to_kind(Kind::Int64)?;
        let same = !target.is_floating_point() || {
            let back = classes.f_to_kind(Kind::Double)?;
            back.f_eq_tensor(&target.f_to_kind(Kind::Double)?)?
                .f_all()?
                .f_int64_value(&[])?
                != 0
        };
        let below = classes.f_lt(0)?.f_logical_and(&classes.f_ne(ignored)?)?;
        let below = below.f_any()?.f_int64_value(&[])? != 0;
        Ok((classes, same, below))
    };
    match whole().map_err(|error| error.to_string())? {
        (_, false, _) => Err(
            "there are targets that are no whole numbers, and this model tells classes: take a \
             model and a loss for numbers"
                .to_owned(),
        ),
        (_, _, true) => Err(format!(
            "there are targets below 0, which are no classes (but for {ignored}, which is left out)"
        )),
        (classes, ..) => Ok(classes),
    }
}

/// Targets as the numbers of so many classes, or the number that losses leave out.
///
/// # Errors
/// One is none.
pub(super) fn of(target: &Tensor, classes: usize, ignored: i64) -> anyhow::Result<Tensor> {
    let target = whole(target, ignored).map_err(anyhow::Error::msg)?;
    if target.numel() > 0 {
        let counted = target.f_masked_fill(&target.f_eq(ignored)?, -1)?;
        let largest = counted.f_max()?.f_int64_value(&[])?;
        anyhow::ensure!(
            largest < classes as i64,
            "a target is {largest}, but there are {classes} classes, from 0 up: use data of these \
             classes, a model that tells more, or leave such targets out of the loss with \
             --ignore-index {largest}"
        );
    }
    Ok(target)
}
