//! Signed differences of times.

use crate::units::Micros;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};

/// A difference of two times: positive if something took longer.
///
/// It counts whole nanoseconds, the resolution of a clock, so that the parts of a difference add up
/// exactly, in any order of addition.
///
/// ```
/// use gpipe_partitioner::{Micros, explain::Delta};
/// let (predicted, measured) = (Micros::new(1000.0)?, Micros::new(1250.5)?);
/// let longer = Delta::between(predicted, measured);
/// assert_eq!((longer.nanos(), longer.to_string()), (250_500, "+250.5 µs".to_owned()));
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delta {
    nanos: i64,
}

/// 36 years: a dozen of these can be added without overflow.
const MOST: f64 = (1_i64 << 60) as f64;

fn nanos(time: Micros) -> i64 {
    (time.get() * 1e3).round().min(MOST) as i64
}

impl Delta {
    /// No difference.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Returns by how much `to` is longer than `from`.
    pub fn between(from: Micros, to: Micros) -> Self {
        Self {
            nanos: nanos(to) - nanos(from),
        }
    }

    /// The number of nanoseconds.
    pub const fn nanos(self) -> i64 {
        self.nanos
    }

    /// The number of microseconds.
    pub fn micros(self) -> f64 {
        self.nanos as f64 / 1e3
    }

    /// The difference without its sign.
    pub fn size(self) -> Micros {
        Micros::saturating(self.micros().abs())
    }

    /// Share of `whole`, with a sign; 0 if `whole` is 0.
    pub fn share_of(self, whole: Micros) -> f64 {
        if whole == Micros::ZERO {
            return 0.0;
        }
        self.micros() / whole.get()
    }
}

impl Add for Delta {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
        }
    }
}

impl Sub for Delta {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.saturating_sub(other.nanos),
        }
    }
}

impl Sum for Delta {
    fn sum<I: Iterator<Item = Self>>(deltas: I) -> Self {
        deltas.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Delta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.nanos.signum() {
            1 => "+",
            -1 => "-",
            _ => "",
        };
        f.pad(&format!("{sign}{}", self.size()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_exact_and_never_overflow() {
        let [a, b, c] = [0.1, 0.3, 0.7].map(Micros::saturating);
        let parts = Delta::between(a, b) + Delta::between(b, c);
        assert_eq!(parts, Delta::between(a, c));
        assert_eq!(Delta::between(c, a).to_string(), "-0.6 µs");
        assert_eq!(Delta::between(a, a).to_string(), "0.0 µs");
        let far = Delta::between(Micros::ZERO, Micros::saturating(f64::MAX));
        assert!(far + far > far && Delta::ZERO - far < Delta::ZERO);
        assert_eq!(far.share_of(Micros::ZERO), 0.0);
    }
}
