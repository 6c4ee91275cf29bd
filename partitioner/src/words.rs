//! Words that go with numbers, and numbers that are words.

use crate::units::Micros;

/// `1 chunk`, `2 chunks`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = match (number, noun.ends_with("ch") || noun.ends_with("ss")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {noun}{plural}")
}

/// A time that may be long: `4.20 s`, `18.6 min`, `6.0 h`, `3.5 d`.
pub fn long_time(time: Micros) -> String {
    let seconds = time.get() / 1e6;
    match seconds {
        t if t < 120.0 => time.to_string(),
        t if t < 7_200.0 => format!("{:.1} min", t / 60.0),
        t if t < 172_800.0 => format!("{:.1} h", t / 3_600.0),
        t => format!("{:.1} d", t / 86_400.0),
    }
}

/// A count from 1 to `most`, as people write it.
///
/// # Errors
/// What it must be.
pub fn whole_number(text: &str, most: usize) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.trim_start_matches(['-', '+']);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` is not a whole number"));
    }
    match text.parse::<usize>() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ if text.starts_with('-') || digits.bytes().all(|byte| byte == b'0') => {
            Err("must be at least 1".to_owned())
        }
        _ => Err(format!("must be at most {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1, "stage"), "1 stage");
        assert_eq!(count(0, "stage"), "0 stages");
        assert_eq!(count(1, "micro-batch"), "1 micro-batch");
        assert_eq!(count(2, "micro-batch"), "2 micro-batches");
    }

    #[test]
    fn long_times_are_in_long_units() {
        for (text, long) in [
            ("90s", "90.00 s"),
            ("5min", "5.0 min"),
            ("100min", "100.0 min"),
            ("6h", "6.0 h"),
            ("60h", "2.5 d"),
        ] {
            assert_eq!(long_time(text.parse().unwrap()), long);
        }
    }
}
