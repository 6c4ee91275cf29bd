//! Time and memory with units: the only place that parses and prints them.

use crate::value_error::ValueError;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

/// A duration or a point in time, in microseconds: finite and not negative.
///
/// Arithmetic keeps the invariant by saturating: at 0 when subtracting, at
/// `f64::MAX` when adding.
///
/// ```
/// use gpipe_partitioner::Micros;
/// let step: Micros = "1.5ms".parse()?;
/// assert_eq!(step.get(), 1500.0);
/// assert_eq!((step + step).to_string(), "3.00 ms");
/// assert!(Micros::new(f64::NAN).is_err());
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Micros(f64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0.0);

    /// # Errors
    /// [`ValueError::NotATime`] when `micros` is negative, NaN or infinite.
    pub fn new(micros: f64) -> Result<Self, ValueError> {
        if micros.is_finite() && micros >= 0.0 {
            // Adding 0 turns -0 into 0, so that equal times have equal bits.
            Ok(Self(micros + 0.0))
        } else {
            Err(ValueError::NotATime { value: micros })
        }
    }

    /// The number of microseconds.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns the time nearest to `micros`: 0 for NaN and negatives.
    pub(crate) fn saturating(micros: f64) -> Self {
        if micros.is_nan() {
            Self::ZERO
        } else {
            Self(micros.clamp(0.0, f64::MAX) + 0.0)
        }
    }
}

// Without NaN and -0 the order of f64 is total.
impl Eq for Micros {}

impl PartialOrd for Micros {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Micros {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl TryFrom<f64> for Micros {
    type Error = ValueError;
    fn try_from(micros: f64) -> Result<Self, ValueError> {
        Self::new(micros)
    }
}

impl From<Micros> for f64 {
    fn from(micros: Micros) -> f64 {
        micros.0
    }
}

impl From<std::time::Duration> for Micros {
    fn from(duration: std::time::Duration) -> Self {
        Self(duration.as_secs_f64() * 1e6)
    }
}

impl Add for Micros {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self((self.0 + other.0).min(f64::MAX))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Micros {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::saturating(self.0 - other.0)
    }
}

impl Mul<f64> for Micros {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::saturating(self.0 * factor)
    }
}

impl Sum for Micros {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::ZERO, Add::add)
    }
}

impl Micros {
    /// Formats the time in the unit of the largest one of its column, unless it is so much smaller
    /// that no digit would be left: 906 ms below 2.88 s is `0.91 s`.
    pub fn in_column(self, largest: Self) -> String {
        let scale = if 100.0 * self.0 < largest.0 {
            self
        } else {
            largest
        };
        self.in_unit_of(scale)
    }

    fn in_unit_of(self, scale: Self) -> String {
        match scale.0 {
            t if t < 1e3 => format!("{:.1} µs", self.0),
            t if t < 1e6 => format!("{:.2} ms", self.0 / 1e3),
            _ => format!("{:.2} s", self.0 / 1e6),
        }
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.in_unit_of(*self))
    }
}

const TIME_UNITS: [(&str, f64); 8] = [
    ("ns", 1e-3),
    ("us", 1.0),
    ("µs", 1.0),
    ("ms", 1e3),
    ("s", 1e6),
    ("min", 6e7),
    ("h", 3.6e9),
    ("d", 8.64e10),
];

impl FromStr for Micros {
    type Err = ValueError;

    /// Parses `5us`, `1.5 ms`, `2s`, `10min`, `6h`, `3d`; a bare number is microseconds.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::Parse {
            text: text.to_owned(),
            expected: "a time such as 5us, 1.5ms or 2s",
        };
        let (number, unit) = split_unit(text);
        let scale = unit_scale(unit, &TIME_UNITS, 1.0).ok_or_else(bad)?;
        let number: f64 = number.parse().map_err(|_| bad())?;
        Self::new(number * scale)
    }
}

/// An amount of memory. Addition saturates at `u64::MAX`.
///
/// ```
/// use gpipe_partitioner::Bytes;
/// let cap: Bytes = "24GiB".parse()?;
/// assert_eq!(cap, Bytes(24 << 30));
/// assert_eq!(Bytes(3_355_443).to_string(), "3.2 MiB");
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No memory at all.
    pub const ZERO: Self = Self(0);

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Formats the amount rounded up, so that a sufficient amount stays sufficient.
    pub(crate) fn rounded_up(self) -> String {
        if self.0 < 1024 {
            return self.to_string();
        }
        let unit = 1_u64 << (10 * (self.0.ilog2() / 10));
        // A tenth of a unit is no whole number of bytes; one more byte does no harm.
        let tenths = (u128::from(self.0) * 10).div_ceil(u128::from(unit));
        let told = tenths * u128::from(unit) / 10;
        Self(u64::try_from(told).unwrap_or(u64::MAX)).to_string()
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let power = (self.0.ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        f.pad(&format!("{value:.1} {}", UNITS[power - 1]))
    }
}

const BYTE_UNITS: [(&str, f64); 10] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];

impl FromStr for Bytes {
    type Err = ValueError;

    /// Parses `24GiB`, `1.5 MB`, `24gib`, `512`; a bare number is bytes.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::Parse {
            text: text.to_owned(),
            expected: if is_short_unit(split_unit(text).1) {
                "an amount of memory with its unit in full, such as 24GiB or 24GB"
            } else {
                "an amount of memory such as 1.5MB or 24GiB"
            },
        };
        if let Ok(exact) = text.trim().parse() {
            return Ok(Self(exact));
        }
        let (number, unit) = split_unit(text);
        let scale = unit_scale(unit, &BYTE_UNITS, 1.0).ok_or_else(bad)?;
        let value = number.parse::<f64>().map_err(|_| bad())? * scale;
        if value.is_finite() && (0.0..u64::MAX as f64).contains(&value) {
            Ok(Self(value.round() as u64))
        } else {
            Err(bad())
        }
    }
}

/// Splits `1.5 ms` into its number and its unit.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = |c: char| c.is_ascii_digit() || ".+-".contains(c);
    let end = text.find(|c| !digits(c)).unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

/// Whether it is an ambiguous unit of other programs, as in `16G`.
fn is_short_unit(unit: &str) -> bool {
    ["k", "m", "g", "t"].contains(&unit.to_ascii_lowercase().as_str())
}

fn unit_scale(unit: &str, units: &[(&str, f64)], bare: f64) -> Option<f64> {
    if unit.is_empty() {
        return Some(bare);
    }
    units
        .iter()
        // `24gb` is unambiguous; `Gb` could be bits.
        .find(|(name, _)| *name == unit || name.to_ascii_lowercase() == unit)
        .map(|&(_, scale)| scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_column_have_one_unit() {
        let of = |time: f64, largest: f64| Micros(time).in_column(Micros(largest));
        // Regression: `906.64 ms` was below `2.88 s`.
        assert_eq!(of(906_640.0, 2_880_000.0), "0.91 s");
        assert_eq!(of(2_880_000.0, 2_880_000.0), "2.88 s");
        // No digit would be left.
        assert_eq!(of(5_000.0, 2_880_000.0), "5.00 ms");
        assert_eq!(of(0.0, 50.0), "0.0 µs");
    }

    #[test]
    fn a_unit_of_two_meanings_is_to_be_written_in_full() {
        let error = "16G".parse::<Bytes>().unwrap_err().to_string();
        assert!(error.contains("such as 24GiB or 24GB"), "{error}");
    }

    #[test]
    fn only_finite_times_from_zero_up_are_times() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Micros::new(bad).is_err(), "{bad}");
        }
        assert_eq!(Micros::new(-0.0).unwrap().get().to_bits(), 0);
        assert!(serde_json::from_str::<Micros>("-3").is_err());
        assert_eq!(serde_json::from_str::<Micros>("3").unwrap().get(), 3.0);
    }

    #[test]
    fn arithmetic_saturates() {
        let (small, large) = (Micros(1.0), Micros(f64::MAX));
        assert_eq!(small - large, Micros::ZERO);
        assert_eq!(large + large, large);
        assert_eq!(large * 2.0, large);
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
    }

    #[test]
    fn what_is_enough_is_enough_as_it_is_told() {
        for bytes in [
            1,
            1023,
            1024,
            1025,
            3_355_443,
            2_097_152,
            4_026_531_841,
            (5 << 40) + 1,
        ] {
            let told = Bytes(bytes).rounded_up();
            let read: Bytes = told.parse().unwrap();
            assert!(read.0 >= bytes, "{bytes}: {told}");
            assert!(read.0 as f64 <= 1.1 * bytes as f64, "{bytes}: {told}");
        }
        assert_eq!(Bytes(2_097_152).rounded_up(), "2.0 MiB");
        assert_eq!(Bytes(2_097_153).rounded_up(), "2.1 MiB");
    }

    #[test]
    fn times_read_and_print() {
        for (text, micros) in [
            ("5us", 5.0),
            ("1.5 ms", 1500.0),
            ("2s", 2e6),
            ("7", 7.0),
            ("500ns", 0.5),
            ("10min", 6e8),
            ("6 h", 2.16e10),
            ("1.5d", 1.296e11),
        ] {
            assert_eq!(text.parse::<Micros>().unwrap().get(), micros, "{text}");
        }
        for bad in ["", "us", "-1us", "1e9us", "5 parsecs", "1.2.3ms", "NaN"] {
            assert!(bad.parse::<Micros>().is_err(), "{bad}");
        }
        assert_eq!(Micros(1250.0).to_string(), "1.25 ms");
        assert_eq!(Micros(12.34).to_string(), "12.3 µs");
        assert_eq!(Micros(3.5e6).to_string(), "3.50 s");
    }

    #[test]
    fn bytes_read_and_print() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("1.5MB", 1_500_000),
            ("32gb", 32_000_000_000),
            ("2 mib", 2 << 20),
            ("512", 512),
            ("0 B", 0),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(bytes), "{text}");
        }
        for bad in ["", "GiB", "-1GiB", "99999999999TiB", "1Gb", "5us", "NaN"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
    }
}
