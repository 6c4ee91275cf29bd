//! What flags may be.

use gpipe_partitioner::ScheduleKind;
use tch::Device;

use crate::cli::input;
use crate::models::zoo::nearest;
use crate::{Precision, Recompute};

pub(super) fn device(text: &str) -> Result<Device, String> {
    crate::parse_device(text).map_err(|error| error.to_string())
}

pub(super) fn schedule(text: &str) -> Result<ScheduleKind, String> {
    match input::schedule(text)? {
        ScheduleKind::ForwardOnly => Err(
            "it has no backward, so nothing can be trained with it; choose another, such as 1f1b"
                .to_owned(),
        ),
        kind => Ok(kind),
    }
}

pub(super) fn chunks(text: &str) -> Result<usize, String> {
    count(text, 1 << 12)
}

/// A number of steps, which may be none.
pub(super) fn steps(text: &str) -> Result<usize, String> {
    match text.trim() {
        "0" => Ok(0),
        other => at_least_one(other),
    }
}

/// A count from 1 to `most`.
fn count(text: &str, most: usize) -> Result<usize, String> {
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

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    count(text, 1 << 32)
}

pub(super) fn threads(text: &str) -> Result<usize, String> {
    count(text, 1 << 10)
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}

/// A time that can be waited for.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    const YEAR: f64 = 365.0 * 24.0 * 3600.0;
    match positive(text.trim())? {
        seconds if seconds <= YEAR => Ok(seconds),
        _ => Err("must be at most a year (31536000)".to_owned()),
    }
}

/// Layers of each stage.
pub(super) fn balance(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(at_least_one).collect()
}

/// A word, or true or false for each stage, as a plan decides it.
pub(super) fn recompute(text: &str) -> Result<Recompute, String> {
    let stages = text.split(',').map(|stage| stage.trim().parse());
    match stages.collect::<Result<Vec<bool>, _>>() {
        Ok(stages) => Ok(Recompute::Stages(stages)),
        Err(_) => text.trim().parse(),
    }
}

pub(super) fn precision(text: &str) -> Result<Precision, String> {
    let names = Precision::ALL.map(|precision| precision.name().to_owned());
    text.trim().parse().map_err(|rule| {
        format!(
            "`{text}` is no precision: did you mean `{}`? It {rule}",
            nearest(text, &names)
        )
    })
}

pub(super) fn number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok();
    let finite = number.filter(|number| number.is_finite());
    finite.ok_or_else(|| "must be a number, and finite".to_owned())
}

pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    let number = number(text).ok().filter(|number| *number >= 0.0);
    number.ok_or_else(|| "must be a number from 0 up".to_owned())
}

/// A share that is not all.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    let number = number(text).ok().filter(|own| (0.0..1.0).contains(own));
    number.ok_or_else(|| "must be a number from 0 to below 1".to_owned())
}

pub(super) fn truth(text: &str) -> Result<bool, String> {
    let truth = text.trim().parse();
    truth.map_err(|_| "must be true or false".to_owned())
}
