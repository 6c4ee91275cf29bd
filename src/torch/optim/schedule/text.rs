//! Text form of schedules: the kind, then `key=value` for each number that was set.

use std::fmt;
use std::str::FromStr;

use super::{LrKind, LrSchedule, RISE, wrong};
use crate::error::{Error, Setting, SettingsError};

const KEYS: &str = "lr, steps, warmup, end, rise and timescale";

impl fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lr={}", self.kind, self.peak)?;
        if let Some(steps) = self.steps {
            write!(f, " steps={steps}")?;
        }
        if self.warm_up > 0 {
            write!(f, " warmup={}", self.warm_up)?;
        }
        if let Some(end) = self.end {
            write!(f, " end={end}")?;
        }
        if self.rise.to_bits() != RISE.to_bits() {
            write!(f, " rise={}", self.rise)?;
        }
        if let Some(steps) = self.timescale {
            write!(f, " timescale={steps}")?;
        }
        Ok(())
    }
}

impl FromStr for LrSchedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let kind: LrKind = (kind.parse())
            .map_err(|why: String| SettingsError::invalid(Setting::LearningRates, why))?;
        let (mut peak, mut steps, mut rest) = (None, None, Vec::new());
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return wrong(&format!("`{word}` is not of the form key=value"));
            };
            match key {
                "lr" => peak = Some(number(key, value)?),
                "steps" => steps = Some(number(key, value)?),
                _ => rest.push((key, value)),
            }
        }
        let Some(peak) = peak else {
            return wrong(&format!("`{text}` does not say lr=…"));
        };
        if steps.is_some() && !kind.ends() {
            return wrong(&format!("{kind} does not end, so it has no steps=…"));
        }
        let new = Self::new(kind, peak, steps)?;
        rest.into_iter()
            .try_fold(new, |schedule, (key, value)| match key {
                "warmup" => schedule.warm_up(number(key, value)?),
                "end" => schedule.end(number(key, value)?),
                "rise" => schedule.rise(number(key, value)?),
                "timescale" => schedule.timescale(number(key, value)?),
                _ => wrong(&format!("`{key}` is not one of its keys, which are {KEYS}")),
            })
    }
}

fn number<T: FromStr>(key: &str, value: &str) -> Result<T, Error> {
    match value.parse() {
        Ok(number) => Ok(number),
        Err(_) => wrong(&format!("{key}={value} is not a number that {key} can be")),
    }
}
