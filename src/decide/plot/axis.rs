//! Axes of a chart.

/// Interval of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) from: f64,
    pub(super) to: f64,
}

impl Range {
    /// Returns the smallest range that contains all finite numbers.
    pub(super) fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let finite = numbers.filter(|number| number.is_finite());
        finite.fold(None, |range: Option<Self>, number| {
            let range = range.unwrap_or(Self {
                from: number,
                to: number,
            });
            Some(Self {
                from: range.from.min(number),
                to: range.to.max(number),
            })
        })
    }

    /// Widens the range on both sides, but not below zero if no number is; a single number gets a range
    /// around it.
    pub(super) fn roomy(self) -> Self {
        let room = match (self.to - self.from) * 0.05 {
            0.0 => (self.to.abs() * 0.05).max(f64::MIN_POSITIVE.sqrt()),
            room => room,
        };
        let from = self.from - room;
        Self {
            from: if self.from >= 0.0 {
                from.max(0.0)
            } else {
                from
            },
            to: self.to + room,
        }
    }

    /// Extends the range to include zero.
    pub(super) fn with_zero(self) -> Self {
        Self {
            from: self.from.min(0.0),
            to: self.to.max(0.0),
        }
    }

    /// Position of a number in the range, from 0 to 1.
    pub(super) fn share(self, number: f64) -> f64 {
        let share = (number - self.from) / (self.to - self.from);
        if share.is_finite() { share } else { 0.5 }
    }

    /// Converts the range to another unit.
    fn per(self, unit: f64) -> Self {
        Self {
            from: self.from / unit,
            to: self.to / unit,
        }
    }

    /// Returns round numbers in the range, at least `least` apart and in at most `most` intervals: at
    /// least a third of that number, where `least` permits.
    pub(super) fn ticks(self, least: f64, most: f64) -> Vec<Tick> {
        let step = round_step((self.to - self.from) / most).max(least);
        let count = ((self.to - self.from) / step).floor();
        if !(step.is_finite() && step > 0.0 && count < 100.0) {
            return Vec::new();
        }
        let first = (self.from / step).ceil();
        let places = (0..=count as u32 + 1).map(|place| (first + f64::from(place)) * step);
        let inside = places.filter(|&place| place <= self.to + step * 1e-9);
        let format = Format::of(step, self.from.abs().max(self.to.abs()));
        inside
            .map(|at| Tick {
                at,
                text: format.text(at),
            })
            .collect()
    }
}

/// Linear or logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// Range of the numbers, or of their logarithms.
    range: Range,
    pub(super) is_log: bool,
}

impl Scale {
    /// Creates a linear scale.
    pub(super) fn plain(range: Range) -> Self {
        let is_log = false;
        Self { range, is_log }
    }

    /// Creates a logarithmic scale of positive numbers.
    pub(super) fn log(range: Range) -> Self {
        let (from, to) = (range.from.log10(), range.to.log10());
        let room = ((to - from) * 0.05).max(0.01);
        Self {
            range: Range {
                from: from - room,
                to: to + room,
            },
            is_log: true,
        }
    }

    /// Position of a number on the scale, from 0 to 1.
    pub(super) fn share(self, number: f64) -> f64 {
        self.range
            .share(if self.is_log { number.log10() } else { number })
    }

    /// Returns round numbers in at most `most` intervals; on a logarithmic scale 1, 2 and 5 times the
    /// powers of ten, or only the powers if these are many. A linear scale is labelled in `unit`.
    pub(super) fn ticks(self, most: f64, unit: f64) -> Vec<Tick> {
        let Range { from, to } = self.range;
        if !self.is_log {
            let mut ticks = self.range.per(unit).ticks(0.0, most);
            ticks.iter_mut().for_each(|tick| tick.at *= unit);
            return ticks;
        }
        let factors: &[f64] = if to - from > most / 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let every = ((to - from) / most).ceil().max(1.0);
        let powers = (from.floor() as i32..=to.ceil() as i32)
            .filter(|power| power.rem_euclid(every as i32) == 0);
        let all = powers.flat_map(|power| factors.iter().map(move |own| own * 10_f64.powi(power)));
        let inside: Vec<f64> = all
            .filter(|own| (from..=to).contains(&own.log10()))
            .collect();
        if inside.len() < 2 {
            // The range is less than a factor of two: linear ticks at logarithmic positions.
            let plain = Range {
                from: 10_f64.powf(from),
                to: 10_f64.powf(to),
            };
            return plain.ticks(0.0, most);
        }
        let text = |at: f64| match at {
            at if (1e-3..1e5).contains(&at) => rounded(at).to_string(),
            at => format!("{:e}", rounded(at)),
        };
        inside
            .into_iter()
            .map(|at| Tick { at, text: text(at) })
            .collect()
    }
}

/// Labelled position on an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) text: String,
}

/// Returns 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0];
    let fits = |factor: &f64| factor * power >= least * (1.0 - 1e-9);
    let factor = factors.into_iter().find(fits).unwrap_or(10.0);
    factor * power
}

/// Format of all numbers of an axis.
#[derive(Clone, Copy, Debug)]
enum Format {
    /// Divided by the unit, with that many decimals and a letter after it.
    Plain(f64, usize, &'static str),
    /// Written as `2e-7`.
    Power,
}

impl Format {
    fn of(step: f64, largest: f64) -> Self {
        if largest < 1e-4 {
            return Self::Power;
        }
        let (unit, letter) = match largest {
            l if l >= 1e15 => return Self::Power,
            l if l >= 1e10 => (1e9, "G"),
            l if l >= 1e7 => (1e6, "M"),
            l if l >= 1e4 => (1e3, "k"),
            _ => (1.0, ""),
        };
        let decimals = -(step / unit * (1.0 + 1e-9)).log10().floor();
        Self::Plain(unit, decimals.clamp(0.0, 12.0) as usize, letter)
    }

    fn text(self, number: f64) -> String {
        // Avoids `-0`.
        let number = number + 0.0;
        match self {
            _ if number == 0.0 => "0".to_owned(),
            Self::Plain(unit, decimals, letter) => {
                format!("{:.decimals$}{letter}", number / unit)
            }
            Self::Power => format!("{:e}", rounded(number)),
        }
    }
}

/// Removes the rounding error of multiplying by a power of ten.
fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// Formats a value in a few digits: `1.2345`, `12,300` as `12300`, `3.0e-5`.
pub(super) fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        a if !a.is_finite() => number.to_string(),
        a if !(1e-3..1e9).contains(&a) => format!("{number:.3e}"),
        a if a >= 1000.0 => format!("{number:.0}"),
        a if a >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(from: f64, to: f64, least: f64) -> Vec<String> {
        let ticks = Range { from, to }.ticks(least, 8.0);
        ticks.into_iter().map(|tick| tick.text).collect()
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(texts(0.0, 400.0, 1.0).len(), 9);
        assert_eq!(texts(0.0, 450.0, 1.0), ["0", "100", "200", "300", "400"]);
        assert_eq!(texts(1.23, 1.31, 0.0).len(), 9);
        assert_eq!(texts(0.0, 25_000.0, 0.0).last().unwrap(), "25k");
        assert_eq!(texts(0.0, 2.5e-5, 0.0)[1], "5e-6");
        assert_eq!(texts(-2.0, 2.1, 0.0), ["-2", "-1", "0", "1", "2"]);
        // Regression: there were two numbers beside a curve from 2.4 to 4.2.
        assert_eq!(texts(2.31, 4.29, 0.0), ["2.5", "3.0", "3.5", "4.0"]);
        // Steps are integers.
        assert_eq!(texts(1.0, 3.0, 1.0), ["1", "2", "3"]);
    }

    #[test]
    fn ticks_of_logarithms_are_round_and_within() {
        let texts = |from: f64, to: f64| -> Vec<String> {
            let ticks = Scale::log(Range { from, to }).ticks(8.0, 1.0);
            ticks.into_iter().map(|tick| tick.text).collect()
        };
        assert_eq!(texts(0.0036, 4.96), ["0.01", "0.1", "1"]);
        assert_eq!(texts(0.4, 4.96), ["0.5", "1", "2", "5"]);
        assert_eq!(texts(1e-9, 1e9).len(), 7);
        assert_eq!(
            texts(1.2, 1.5),
            ["1.20", "1.25", "1.30", "1.35", "1.40", "1.45", "1.50"]
        );
        let scale = Scale::log(Range {
            from: 0.01,
            to: 1.0,
        });
        assert!((scale.share(0.1) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_single_number_has_room_around_it() {
        for number in [0.0, 1.5, -3.0, 1e-30, 1e30] {
            let range = Range::of([number, f64::NAN].into_iter()).unwrap().roomy();
            assert!(range.from <= number && number < range.to, "{range:?}");
            assert!((0.0..=1.0).contains(&range.share(number)));
        }
        assert_eq!(Range::of([f64::INFINITY].into_iter()), None);
    }
}
