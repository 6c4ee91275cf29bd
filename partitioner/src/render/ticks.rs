//! Round numbers along the axes of all pictures.

use crate::units::{Bytes, Micros};

/// Returns the least step, 1, 2 or 5 times a power of ten, that divides `end` into at most `parts` parts;
/// none for 0. The mantissa is at least 1, so the power gives the number of decimals.
fn step(end: f64, parts: f64) -> Option<(f64, i32)> {
    // A step that misses by the last bit counts as large enough.
    const ALMOST: f64 = 1.0 - 1e-12;
    let part = end / parts * ALMOST;
    if !part.is_normal() || part < 0.0 {
        return None;
    }
    let power = part.log10().floor();
    let base = 10_f64.powf(power);
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|round| round * base >= part);
    Some(match round {
        Some(round) => (round * base, power as i32),
        None => (10.0 * base, power as i32 + 1),
    })
}

/// Returns round numbers from 0 to `end`, at most `parts` in addition to 0, each with the decimals that all
/// of them need and the unit.
fn named(end: f64, parts: u32, unit: &str) -> Vec<(f64, String)> {
    let zero = (0.0, "0".to_owned());
    let Some((step, power)) = step(end, f64::from(parts)) else {
        return vec![zero];
    };
    let digits = (-power).clamp(0, 12) as usize;
    let count = (end / step * (1.0 + 1e-12)).floor() as u32;
    let tick = |number: u32| {
        let value = step * f64::from(number);
        (value, format!("{value:.digits$} {unit}"))
    };
    std::iter::once(zero)
        .chain((1..=count.min(parts)).map(tick))
        .collect()
}

/// Returns round times from 0 to `end`, in one unit.
pub(super) fn times(end: Micros, parts: u32) -> Vec<(Micros, String)> {
    let (unit, name) = match end.get() {
        end if end < 1e3 => (1.0, "µs"),
        end if end < 1e6 => (1e3, "ms"),
        _ => (1e6, "s"),
    };
    let ticks = named(end.get() / unit, parts, name).into_iter();
    ticks
        .map(|(value, label)| (Micros::saturating(value * unit), label))
        .collect()
}

/// Returns amounts of memory from 0 to `end`, a power of two apart, at most `parts` in addition to 0, in
/// one unit.
pub(super) fn amounts(end: Bytes, parts: u32) -> Vec<(Bytes, String)> {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let zero = (Bytes::ZERO, "0".to_owned());
    if end == Bytes::ZERO {
        return vec![zero];
    }
    let power = end.get().ilog2() / 10;
    let unit = (1_u64 << (10 * power)) as f64;
    let (length, name) = (end.get() as f64 / unit, UNITS[power as usize]);
    // At most `parts` in addition to 0: a step exceeds one part in `parts + 1`.
    let least = length / (f64::from(parts) + 1.0);
    let step = 2.0_f64.powf(least.log2().floor() + 1.0);
    // No fractions of a byte.
    let step = if power == 0 { step.max(1.0) } else { step };
    let digits = (-step.log2()).max(0.0) as usize;
    let tick = |number: u32| {
        let value = step * f64::from(number);
        (
            Bytes((value * unit) as u64),
            format!("{value:.digits$} {name}"),
        )
    };
    let count = (length / step).floor() as u32;
    std::iter::once(zero).chain((1..=count).map(tick)).collect()
}

/// Returns round shares from 0 to the first that is at least `highest`, in percent.
pub(super) fn shares(highest: f64, parts: u32) -> Vec<(f64, String)> {
    let percent = 100.0 * highest;
    let end = step(percent, f64::from(parts)).map_or(0.0, |(step, _)| {
        (percent / step * (1.0 - 1e-12)).ceil() * step
    });
    let ticks = named(end, parts, "%").into_iter();
    ticks.map(|(value, label)| (value / 100.0, label)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<T>(ticks: Vec<(T, String)>) -> String {
        let labels = ticks.into_iter().map(|(_, label)| label);
        labels.collect::<Vec<_>>().join(", ")
    }

    /// Regression: ticks at fifths of the length: 6.60 ms, 13.20 ms, 19.80 ms; and 1.0 for 1.
    #[test]
    fn times_are_round_and_have_the_decimals_they_need() {
        for (end, wanted) in [
            (33_000.0, "0, 5 ms, 10 ms, 15 ms, 20 ms, 25 ms, 30 ms"),
            (10_000.0, "0, 2 ms, 4 ms, 6 ms, 8 ms, 10 ms"),
            (1.0, "0, 0.2 µs, 0.4 µs, 0.6 µs, 0.8 µs, 1.0 µs"),
            (7.5, "0, 1 µs, 2 µs, 3 µs, 4 µs, 5 µs, 6 µs, 7 µs"),
            (
                0.75,
                "0, 0.1 µs, 0.2 µs, 0.3 µs, 0.4 µs, 0.5 µs, 0.6 µs, 0.7 µs",
            ),
            (250.0, "0, 50 µs, 100 µs, 150 µs, 200 µs, 250 µs"),
            (2.4e6, "0, 0.5 s, 1.0 s, 1.5 s, 2.0 s"),
            (0.0, "0"),
        ] {
            assert_eq!(labels(times(Micros::saturating(end), 8)), wanted);
        }
        assert!(times(Micros::saturating(f64::MAX), 8).len() > 1);
    }

    /// Regression: ticks were 1.5 GiB, 1.0 GiB, 512.0 MiB; and only 0 and 5 GiB of 8.
    #[test]
    fn amounts_of_an_axis_have_one_unit() {
        for (end, wanted) in [
            (1700 << 20, "0, 0.5 GiB, 1.0 GiB, 1.5 GiB"),
            (900 << 20, "0, 256 MiB, 512 MiB, 768 MiB"),
            (12 << 20, "0, 4 MiB, 8 MiB, 12 MiB"),
            (9175 << 20, "0, 2 GiB, 4 GiB, 6 GiB, 8 GiB"),
            (3, "0, 1 B, 2 B, 3 B"),
            (0, "0"),
        ] {
            assert_eq!(labels(amounts(Bytes(end), 4)), wanted);
        }
        assert_eq!(labels(amounts(Bytes(9175 << 20), 2)), "0, 4 GiB, 8 GiB");
        assert!(amounts(Bytes(u64::MAX), 3).len() > 1);
    }

    /// Regression: ticks were fifths of a value above the highest: 0, 6, 12, 18, 24, 30 %.
    #[test]
    fn shares_are_round_and_reach_the_highest() {
        for (highest, wanted) in [
            (0.283, "0, 10 %, 20 %, 30 %"),
            (0.3, "0, 10 %, 20 %, 30 %"),
            (0.2, "0, 5 %, 10 %, 15 %, 20 %"),
            (0.1, "0, 2 %, 4 %, 6 %, 8 %, 10 %"),
            (0.93, "0, 20 %, 40 %, 60 %, 80 %, 100 %"),
        ] {
            assert_eq!(labels(shares(highest, 5)), wanted);
        }
    }
}
