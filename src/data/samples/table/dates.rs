//! Date columns, converted to numbers: the days, and their position in recurring periods.

use std::f64::consts::TAU;
use std::sync::LazyLock;

use time::format_description::OwnedFormatItem;
use time::format_description::parse_owned;
use time::parsing::Parsed;
use time::{Date, Month, Time};

/// Formats that distinguish day and month.
const DAYS: [&str; 3] = [
    "[year]-[month]-[day]",
    "[year]/[month]/[day]",
    "[day].[month].[year]",
];
/// The time of day, without its time zone.
const CLOCK: &str = "[hour]:[minute][optional [:[second][optional [.[subsecond]]]]]";
/// Average number of days in a year.
const YEAR: f64 = 365.2425;

static FORMATS: LazyLock<Option<(Vec<OwnedFormatItem>, OwnedFormatItem)>> = LazyLock::new(|| {
    let days: Result<Vec<_>, _> = DAYS.iter().map(|own| parse_owned::<2>(own)).collect();
    Some((days.ok()?, parse_owned::<2>(CLOCK).ok()?))
});

const DAY: f64 = 86_400.0;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    /// Whole days since 2000.
    days: f64,
    /// Elapsed share of the day.
    clock: f64,
    pub(super) told: Told,
}

/// Precision of a cell's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Day,
    /// With a local time.
    Clock,
    /// With a time and its zone, converted to UTC.
    Zone,
}

/// Parses a cell such as `2024-01-31`, `31.01.2024` or `2024-01-31T18:30:00Z`.
pub(super) fn moment(cell: &str) -> Option<Moment> {
    let (days, clock) = FORMATS.as_ref()?;
    let (date, rest) = days.iter().find_map(|format| {
        let mut parsed = Parsed::new();
        let rest = parsed.parse_item(cell.as_bytes(), format).ok()?;
        Some((Date::try_from(parsed).ok()?, rest))
    })?;
    let begin = Date::from_calendar_date(2000, Month::January, 1).ok()?;
    let days = f64::from(date.to_julian_day() - begin.to_julian_day());
    let [b'T' | b't' | b' ', rest @ ..] = rest else {
        let moment = Moment {
            days,
            clock: 0.0,
            told: Told::Day,
        };
        return rest.is_empty().then_some(moment);
    };
    let mut parsed = Parsed::new();
    let rest = parsed.parse_item(rest, clock).ok()?;
    let (hours, minutes, seconds, nanoseconds) = Time::try_from(parsed).ok()?.as_hms_nano();
    let seconds = f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0 + f64::from(seconds);
    let seconds = seconds + f64::from(nanoseconds) * 1e-9;
    let (ahead, told) = match rest {
        [] => (0.0, Told::Clock),
        zone => (ahead(zone)?, Told::Zone),
    };
    // The day may differ in UTC.
    let seconds = seconds - ahead;
    Some(Moment {
        days: days + seconds.div_euclid(DAY),
        clock: seconds.rem_euclid(DAY) / DAY,
        told,
    })
}

/// Returns the seconds by which a zone is ahead of UTC: `Z`, `UTC`, or an offset such as `+02:00`,
/// `-0330` or `+02`.
fn ahead(zone: &[u8]) -> Option<f64> {
    let zone = std::str::from_utf8(zone).ok()?.trim_start();
    if ["Z", "UTC", "GMT"]
        .iter()
        .any(|own| zone.eq_ignore_ascii_case(own))
    {
        return Some(0.0);
    }
    let sign = match zone.get(..1)? {
        "+" => 1.0,
        "-" => -1.0,
        _ => return None,
    };
    let (hours, minutes) = match &zone[1..] {
        own if own.len() == 2 => (own, "00"),
        own if own.len() == 4 => (own.get(..2)?, own.get(2..)?),
        own => own.split_once(':')?,
    };
    let number = |digits: &str, below: u8| {
        let is_two = digits.len() == 2 && digits.bytes().all(|own| own.is_ascii_digit());
        let number = digits.parse::<u8>().ok().filter(|own| *own < below);
        number.filter(|_| is_two).map(f64::from)
    };
    Some(sign * (number(hours, 24)? * 3600.0 + number(minutes, 60)? * 60.0))
}

/// Whether a date is ambiguous in day and month, such as `1/2/2024`.
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
    /// Returns the inputs of a date: the days, the positions in the year and the week, and in the day
    /// if times are given.
    pub(super) fn numbers(self, with_clock: bool) -> impl Iterator<Item = f64> {
        let days = self.days + self.clock;
        let turns = [days / YEAR, days / 7.0, self.clock];
        let turns = turns.into_iter().take(if with_clock { 3 } else { 2 });
        let places = turns.flat_map(|turn| {
            let (sine, cosine) = (turn * TAU).sin_cos();
            [sine, cosine]
        });
        std::iter::once(days).chain(places)
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
    fn times_without_a_zone_are_those_of_the_clock() {
        let own = moment("2000-01-02 18:00").unwrap();
        assert_eq!((own.days, own.clock, own.told), (1.0, 0.75, Told::Clock));
    }

    /// The offset was ignored: one moment was read as two, hours apart.
    #[test]
    fn times_with_a_zone_are_in_utc() {
        for (cell, days, clock) in [
            ("2000-01-02T18:00:00Z", 1.0, 0.75),
            ("2000-01-02T18:00:00 UTC", 1.0, 0.75),
            ("2000-01-02T20:00:00+02:00", 1.0, 0.75),
            ("2000-01-02T20:00:00+02", 1.0, 0.75),
            ("2000-01-02 14:30:00-0330", 1.0, 0.75),
            ("2000-01-02 01:00:00 +02:00", 0.0, 23.0 / 24.0),
            ("2000-01-02 23:00:00-01:00", 2.0, 0.0),
        ] {
            let own = moment(cell).unwrap();
            let told = (own.days, own.clock, own.told);
            assert_eq!(told, (days, clock, Told::Zone), "{cell}");
        }
        for cell in ["+25:00", "+1", "+01:60", "+1:00", "CEST", "+", "+é0"] {
            assert_eq!(moment(&format!("2000-01-02 18:00{cell}")), None, "{cell}");
        }
    }

    /// Fractions were dropped, and times were rounded to 84 seconds before centring.
    #[test]
    fn fractions_of_a_second_count() {
        let days = |cell: &str| moment(cell).unwrap().numbers(true).next().unwrap();
        let (one, other) = (
            days("2024-01-01T10:00:00.25"),
            days("2024-01-01T10:00:00.5"),
        );
        assert!(
            ((other - one) * DAY - 0.25).abs() < 1e-5,
            "{}",
            (other - one) * DAY
        );
    }

    #[test]
    fn a_week_later_is_at_the_same_place_of_the_week() {
        let numbers = |cell: &str| -> Vec<f64> { moment(cell).unwrap().numbers(true).collect() };
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
