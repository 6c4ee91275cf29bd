//! Columns of dates: the days, and their place in what comes again, as models learn it.

use std::f64::consts::TAU;
use std::sync::LazyLock;

use time::format_description::OwnedFormatItem;
use time::format_description::parse_owned;
use time::parsing::Parsed;
use time::{Date, Month, Time};

/// Formats in which day and month cannot be taken for each other.
const DAYS: [&str; 3] = [
    "[year]-[month]-[day]",
    "[year]/[month]/[day]",
    "[day].[month].[year]",
];
/// The time of a day. What tells its zone is not read: times are those of the clocks there.
const CLOCK: &str = "[hour]:[minute][optional [:[second][optional [.[subsecond]]]]]";
/// Days in a year, on average.
const YEAR: f64 = 365.2425;

static FORMATS: LazyLock<Option<(Vec<OwnedFormatItem>, OwnedFormatItem)>> = LazyLock::new(|| {
    let days: Result<Vec<_>, _> = DAYS.iter().map(|own| parse_owned::<2>(own)).collect();
    Some((days.ok()?, parse_owned::<2>(CLOCK).ok()?))
});

/// When a cell is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    /// Days since 2000.
    days: f64,
    /// The share of the day that is over.
    clock: f64,
    /// Whether the time of the day is given.
    pub(super) has_clock: bool,
}

/// The moment in a cell such as `2024-01-31`, `31.01.2024` or `2024-01-31T18:30:00Z`.
pub(super) fn moment(cell: &str) -> Option<Moment> {
    let (days, clock) = FORMATS.as_ref()?;
    let (date, rest) = days.iter().find_map(|format| {
        let mut parsed = Parsed::new();
        let rest = parsed.parse_item(cell.as_bytes(), format).ok()?;
        Some((Date::try_from(parsed).ok()?, rest))
    })?;
    let begin = Date::from_calendar_date(2000, Month::January, 1).ok()?;
    let days = f64::from(date.to_julian_day() - begin.to_julian_day());
    let [b'T' | b' ', rest @ ..] = rest else {
        let moment = Moment {
            days,
            clock: 0.0,
            has_clock: false,
        };
        return rest.is_empty().then_some(moment);
    };
    let mut parsed = Parsed::new();
    let rest = parsed.parse_item(rest, clock).ok()?;
    let time = Time::try_from(parsed).ok()?;
    let (hours, minutes, seconds) = time.as_hms();
    let seconds = f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0 + f64::from(seconds);
    is_zone(rest).then_some(Moment {
        days,
        clock: seconds / 86400.0,
        has_clock: true,
    })
}

/// Whether this is nothing, `Z`, or an offset such as `+02:00`.
fn is_zone(rest: &[u8]) -> bool {
    match rest {
        [] | [b'Z'] => true,
        [b'+' | b'-', digits @ ..] => {
            let is_part = |own: &u8| own.is_ascii_digit() || *own == b':';
            (2..=5).contains(&digits.len()) && digits.iter().all(is_part)
        }
        _ => false,
    }
}

/// Whether a text is a date of which nobody knows the day from the month, such as `1/2/2024`.
pub(super) fn is_ambiguous(cell: &str) -> bool {
    let day = cell.split([' ', 'T']).next().unwrap_or_default();
    [b'/', b'-'].iter().any(|separator| {
        let mut parts = day.split(char::from(*separator)).map(|part| {
            let digits = part.bytes().all(|own| own.is_ascii_digit());
            if digits { part.len() } else { 0 }
        });
        let lengths = [parts.next(), parts.next(), parts.next(), parts.next()];
        matches!(lengths, [Some(1 | 2), Some(1 | 2), Some(2 | 4), None])
    })
}

impl Moment {
    /// Its numbers: the days, the place in the year and the week, and in the day where times are given.
    pub(super) fn numbers(self, with_clock: bool) -> impl Iterator<Item = f32> {
        let days = self.days + self.clock;
        let turns = [days / YEAR, days / 7.0, self.clock];
        let turns = turns.into_iter().take(if with_clock { 3 } else { 2 });
        let places = turns.flat_map(|turn| {
            let (sine, cosine) = (turn * TAU).sin_cos();
            [sine, cosine]
        });
        std::iter::once(days).chain(places).map(|own| own as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_where_nobody_can_take_them_for_others() {
        let days = |cell: &str| moment(cell).map(|own| own.days);
        assert_eq!(days("2000-01-01"), Some(0.0));
        assert_eq!(days("2000/02/01"), Some(31.0));
        assert_eq!(days("31.12.1999"), Some(-1.0));
        assert_eq!(days("2024-02-29"), Some(8825.0));
        for cell in [
            "2023-02-29",
            "1/2/2024",
            "2024",
            "2024-01-01x",
            "",
            "2024-01-01 25:00",
        ] {
            assert_eq!(moment(cell), None, "{cell}");
        }
    }

    #[test]
    fn times_of_a_day_are_those_of_the_clock() {
        for cell in [
            "2000-01-02 18:00",
            "2000-01-02T18:00:00.5Z",
            "2000-01-02T18:00:00+02:00",
        ] {
            let own = moment(cell).unwrap();
            assert_eq!(
                (own.days, own.clock, own.has_clock),
                (1.0, 0.75, true),
                "{cell}"
            );
        }
    }

    #[test]
    fn a_week_later_is_at_the_same_place_of_the_week() {
        let numbers = |cell: &str| -> Vec<f32> { moment(cell).unwrap().numbers(true).collect() };
        let (one, other) = (numbers("2024-01-01"), numbers("2024-01-08"));
        assert_eq!(one.len(), 7);
        assert!((one[3] - other[3]).abs() < 1e-4 && (one[4] - other[4]).abs() < 1e-4);
        assert!((other[0] - one[0] - 7.0).abs() < 1e-6);
    }

    #[test]
    fn dates_that_could_be_others_are_seen() {
        for cell in ["1/2/2024", "31/12/24", "01-02-2024", "1/2/2024 10:00"] {
            assert!(is_ambiguous(cell), "{cell}");
        }
        for cell in ["2024-01-02", "a/b/cc", "1/2", "Rome", "1/2/3/4"] {
            assert!(!is_ambiguous(cell), "{cell}");
        }
    }
}
