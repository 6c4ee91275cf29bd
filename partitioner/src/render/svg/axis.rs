//! Round times below a picture.

use crate::units::Micros;

/// At most nine round times from 0 to `end`, with their names.
pub(super) fn ticks(end: Micros) -> Vec<(Micros, String)> {
    const PARTS: f64 = 8.0;
    let (unit, name) = match end.get() {
        end if end < 1e3 => (1.0, "µs"),
        end if end < 1e6 => (1e3, "ms"),
        _ => (1e6, "s"),
    };
    let part = end.get() / unit / PARTS;
    if part.is_nan() || part <= 0.0 {
        return vec![(Micros::ZERO, "0".to_owned())];
    }
    let power = part.log10().floor();
    let base = 10_f64.powf(power);
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|round| round * base >= part);
    let step = round.unwrap_or(10.0) * base;
    // The mantissa 10 has a digit less than it says, which does no harm.
    let digits = (-power).clamp(0.0, 12.0) as usize;
    let count = (end.get() / unit / step * (1.0 + f64::EPSILON)).floor() as u32;
    let tick = |number: u32| {
        let value = step * f64::from(number);
        let label = match number {
            0 => "0".to_owned(),
            _ => format!("{value:.digits$} {name}"),
        };
        (Micros::saturating(value * unit), label)
    };
    (0..=count.min(PARTS as u32)).map(tick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They were at fifths of the length: 6.60 ms, 13.20 ms, 19.80 ms.
    #[test]
    fn ticks_are_round() {
        let ticks = |end: f64| {
            let ticks = super::ticks(Micros::saturating(end)).into_iter();
            ticks.map(|(_, label)| label).collect::<Vec<_>>()
        };
        let named = |values: &[&str], unit: &str| {
            let names = values.iter().map(|value| format!("{value} {unit}"));
            ["0".to_owned()]
                .into_iter()
                .chain(names)
                .collect::<Vec<_>>()
        };
        let fives = ["5", "10", "15", "20", "25", "30"];
        assert_eq!(ticks(33_000.0), named(&fives, "ms"));
        assert_eq!(ticks(10_000.0), named(&["2", "4", "6", "8", "10"], "ms"));
        assert_eq!(
            ticks(1.0),
            named(&["0.2", "0.4", "0.6", "0.8", "1.0"], "µs")
        );
        assert_eq!(
            ticks(250.0),
            named(&["50", "100", "150", "200", "250"], "µs")
        );
        assert_eq!(ticks(2.4e6), named(&["0.5", "1.0", "1.5", "2.0"], "s"));
        assert_eq!(ticks(0.0), ["0"]);
        assert!(ticks(f64::MAX).len() > 1);
    }
}
