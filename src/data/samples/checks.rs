//! Numbers that a model takes: whole ones, those of a range, and of which kind.

use tch::{Kind, TchError, Tensor};

/// What numbers must be, and the kind that they become.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// `input` or `target`, for messages.
    what: &'static str,
    whole: bool,
    /// The least and the largest, and why.
    within: Option<(f64, f64, String)>,
    /// A number that is taken besides.
    also: Option<i64>,
    kind: Option<Kind>,
}

impl Check {
    /// Any number.
    pub fn any(what: &'static str) -> Self {
        Self {
            what,
            whole: false,
            within: None,
            also: None,
            kind: None,
        }
    }

    /// Whole numbers.
    pub fn whole(what: &'static str) -> Self {
        Self {
            whole: true,
            kind: Some(Kind::Int64),
            ..Self::any(what)
        }
    }

    /// From `least` to `most`, both among them; `why` goes on after the number that is not.
    #[must_use]
    pub fn within(mut self, least: f64, most: f64, why: impl Into<String>) -> Self {
        self.within = Some((least, most, why.into()));
        self
    }

    /// Besides those this number.
    #[must_use]
    pub fn or(mut self, number: Option<i64>) -> Self {
        self.also = number;
        self
    }

    /// Numbers of this kind in the end, which can hold each of them.
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

    /// Whether numbers become such of single precision or less.
    pub(crate) fn rounds(&self) -> bool {
        matches!(self.kind, Some(Kind::Float | Kind::Half | Kind::BFloat16))
    }

    /// The numbers, checked.
    ///
    /// # Errors
    /// One is not what it must be: which.
    pub(crate) fn of(&self, numbers: Tensor) -> anyhow::Result<Tensor> {
        if !self.takes_one(&numbers)? {
            self.look(&numbers)?;
        }
        match self.kind {
            Some(kind) => Ok(numbers.f_to_kind(kind)?),
            None => Ok(numbers),
        }
    }

    /// Whether it is a single number, as most targets are, and taken: soon seen without libtorch.
    fn takes_one(&self, numbers: &Tensor) -> Result<bool, TchError> {
        /// The largest of which all whole numbers are doubles.
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

    /// Looks for a number that is not taken.
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

    /// Which are outside of a range. A number that is none is, too.
    fn outside(&self, numbers: &Tensor, least: f64, most: f64) -> anyhow::Result<Tensor> {
        let inside = numbers.f_ge(least)?.f_logical_and(&numbers.f_le(most)?)?;
        let inside = match self.also {
            Some(also) => inside.f_logical_or(&numbers.f_eq(also)?)?,
            None => inside,
        };
        Ok(inside.f_logical_not()?)
    }
}

/// The least and the largest number of a kind of whole numbers that has not room for all.
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

/// Which numbers are not whole.
fn broken(numbers: &Tensor) -> anyhow::Result<Tensor> {
    if !numbers.is_floating_point() {
        return Ok(numbers.f_zeros_like()?.f_to_kind(Kind::Bool)?);
    }
    // NaN is not NaN, and infinity less infinity is none either.
    let rest = numbers.f_sub(&numbers.f_trunc()?)?;
    Ok(rest.f_eq(0.0)?.f_logical_not()?)
}

/// The first number that is chosen, as text.
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
