//! Checks that a model takes the numbers: integers, ranges and types.

use tch::{Kind, TchError, Tensor};

/// The constraints of numbers, and their final type.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// `input` or `target`, for messages.
    what: &'static str,
    whole: bool,
    /// Least and largest number, and the reason.
    within: Option<(f64, f64, String)>,
    /// An additional valid number.
    also: Option<i64>,
    kind: Option<Kind>,
}

impl Check {
    /// Accepts any number.
    pub fn any(what: &'static str) -> Self {
        Self {
            what,
            whole: false,
            within: None,
            also: None,
            kind: None,
        }
    }

    /// Accepts integers.
    pub fn whole(what: &'static str) -> Self {
        Self {
            whole: true,
            kind: Some(Kind::Int64),
            ..Self::any(what)
        }
    }

    /// Accepts `least` to `most`, inclusive; `why` follows the rejected number in the error.
    #[must_use]
    pub fn within(mut self, least: f64, most: f64, why: impl Into<String>) -> Self {
        self.within = Some((least, most, why.into()));
        self
    }

    /// Accepts an additional number.
    #[must_use]
    pub fn or(mut self, number: Option<i64>) -> Self {
        self.also = number;
        self
    }

    /// Converts numbers to this type, which must be able to hold each of them.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = Some(kind);
        if let (None, Some((least, most))) = (&self.within, bounds(kind)) {
            let why =
                format!("and the model takes numbers of kind {kind:?}, from {least} to {most}");
            return self.within(least, most, why);
        }
        self
    }

    /// Whether numbers are converted to single precision or less.
    pub(crate) fn rounds(&self) -> bool {
        matches!(self.kind, Some(Kind::Float | Kind::Half | Kind::BFloat16))
    }

    /// Checks the numbers and converts them.
    ///
    /// # Errors
    /// A number is invalid; the error names it.
    pub(crate) fn of(&self, numbers: Tensor) -> anyhow::Result<Tensor> {
        if !self.takes_one(&numbers)? {
            self.look(&numbers)?;
        }
        match self.kind {
            Some(kind) => Ok(numbers.f_to_kind(kind)?),
            None => Ok(numbers),
        }
    }

    /// Whether this is a valid single number, as most targets are: a fast path without libtorch.
    fn takes_one(&self, numbers: &Tensor) -> Result<bool, TchError> {
        /// Largest double up to which all integers are exact.
        const EXACT: f64 = 9e15;
        if numbers.numel() != 1 {
            return Ok(false);
        }
        let number = numbers.f_double_value(&vec![0; numbers.dim()])?;
        let within = self.within.as_ref().is_none_or(|(least, most, _)| {
            (*least..=*most).contains(&number)
                || self
                    .also
                    .is_some_and(|own| number.total_cmp(&(own as f64)).is_eq())
        });
        Ok(number.abs() < EXACT && within && !(self.whole && number.fract() != 0.0))
    }

    /// Searches for an invalid number.
    fn look(&self, numbers: &Tensor) -> anyhow::Result<()> {
        let what = self.what;
        let article = if what.starts_with('i') { "an" } else { "a" };
        if self.whole
            && let Some(broken) = first(numbers, &broken(numbers)?)?
        {
            anyhow::bail!("{article} {what} is {broken}, which is no whole number");
        }
        if let Some((least, most, why)) = &self.within
            && let Some(other) = first(numbers, &self.outside(numbers, *least, *most)?)?
        {
            anyhow::bail!("{article} {what} is {other}, {why}");
        }
        Ok(())
    }

    /// Marks the numbers outside a range, including NaN.
    fn outside(&self, numbers: &Tensor, least: f64, most: f64) -> anyhow::Result<Tensor> {
        let inside = numbers.f_ge(least)?.f_logical_and(&numbers.f_le(most)?)?;
        let inside = match self.also {
            Some(also) => inside.f_logical_or(&numbers.f_eq(also)?)?,
            None => inside,
        };
        Ok(inside.f_logical_not()?)
    }
}

/// Returns the limits of an integer type that cannot hold all numbers.
fn bounds(kind: Kind) -> Option<(f64, f64)> {
    let of = |least: i64, most: i64| Some((least as f64, most as f64));
    match kind {
        Kind::Bool => of(0, 1),
        Kind::Uint8 => of(0, u8::MAX.into()),
        Kind::Int8 => of(i8::MIN.into(), i8::MAX.into()),
        Kind::Int16 => of(i16::MIN.into(), i16::MAX.into()),
        Kind::Int => of(i32::MIN.into(), i32::MAX.into()),
        _ => None,
    }
}

/// Marks the numbers that are not integers.
fn broken(numbers: &Tensor) -> anyhow::Result<Tensor> {
    if !numbers.is_floating_point() {
        return Ok(numbers.f_zeros_like()?.f_to_kind(Kind::Bool)?);
    }
    // NaN differs from NaN, and infinity minus infinity is NaN.
    let rest = numbers.f_sub(&numbers.f_trunc()?)?;
    Ok(rest.f_eq(0.0)?.f_logical_not()?)
}

/// Returns the first marked number as text.
fn first(numbers: &Tensor, chosen: &Tensor) -> anyhow::Result<Option<String>> {
    if chosen.numel() == 0 || chosen.f_any()?.f_int64_value(&[])? == 0 {
        return Ok(None);
    }
    let number = numbers
        .f_reshape([-1])?
        .f_masked_select(&chosen.f_reshape([-1])?)?;
    let number = number.f_get(0)?;
    Ok(Some(if number.is_floating_point() {
        number.f_double_value(&[])?.to_string()
    } else {
        number.f_int64_value(&[])?.to_string()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(check: &Check, numbers: &Tensor) -> String {
        check.of(numbers.shallow_clone()).unwrap_err().to_string()
    }

    #[test]
    fn the_first_number_that_is_not_taken_is_named() {
        let truths = Check::whole("input").within(0.0, 1.0, "and so on");
        assert_eq!(
            said(&truths, &Tensor::from_slice(&[0_i64, 7, 8])),
            "an input is 7, and so on"
        );
        for (number, wanted) in [(0.5, "0.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
            let said = said(&truths, &Tensor::from_slice(&[1.0, number]));
            assert_eq!(
                said,
                format!("an input is {wanted}, which is no whole number")
            );
        }
        let shares = Check::any("target").within(0.0, 1.0, "no");
        assert_eq!(
            said(&shares, &Tensor::from_slice(&[1.0, f64::NAN])),
            "a target is NaN, no"
        );
        let taken = shares.or(Some(-100)).of(Tensor::from_slice(&[-100_i64, 1]));
        assert_eq!(taken.unwrap().kind(), Kind::Int64);
    }

    #[test]
    fn a_kind_that_cannot_hold_a_number_refuses_it() {
        let bytes = Check::whole("input").of_kind(Kind::Uint8);
        let said = said(&bytes, &Tensor::from_slice(&[255_i64, 256]));
        assert!(
            said.contains("an input is 256") && said.contains("0 to 255"),
            "{said}"
        );
        assert_eq!(
            bytes.of(Tensor::from_slice(&[255.0])).unwrap().kind(),
            Kind::Uint8
        );
        let long = Check::whole("input").of_kind(Kind::Int64);
        assert!(long.of(Tensor::from_slice(&[i64::MIN, i64::MAX])).is_ok());
        assert!(long.of(Tensor::from_slice::<i64>(&[])).is_ok());
    }
}
