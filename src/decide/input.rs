//! Parsers shared by several verbs: values of flags, and files.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use gpipe_partitioner::tree::{MOST_LEAVES, can_have_leaves};
use gpipe_partitioner::words::{path_instead, whole_number};
use gpipe_partitioner::{
    AllReduce, Bytes, DeviceNames, HostLink, Link, Micros, Neighbours, Profile, ScheduleKind,
    Transformer, When,
};

use super::Failure;

/// The largest schedule file that is read, in bytes.
const MAX_FILE: u64 = 64 << 20;

fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|error: T::Err| error.to_string())
}

pub(crate) fn schedule(text: &str) -> Result<ScheduleKind, String> {
    parsed(text)
}

pub(crate) fn micros(text: &str) -> Result<Micros, String> {
    parsed(text)
}

pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    parsed(text)
}

/// Parses a number of tokens: `300B`, `1.5T`, `2e9`.
pub(crate) fn tokens(text: &str) -> Result<f64, String> {
    const SCALES: [(char, f64); 4] = [('K', 1e3), ('M', 1e6), ('B', 1e9), ('T', 1e12)];
    let text = text.trim();
    let scale = SCALES
        .into_iter()
        .find(|(unit, _)| text.ends_with([*unit, unit.to_ascii_lowercase()]));
    let (number, scale) = match scale {
        Some((_, scale)) => (&text[..text.len() - 1], scale),
        None => (text, 1.0),
    };
    let tokens = number.trim().parse::<f64>().ok().map(|own| own * scale);
    let tokens = tokens.filter(|own| own.is_finite() && *own >= 1.0);
    tokens.ok_or_else(|| "must be a number of tokens, such as 300B or 1.5T".to_owned())
}

/// Parses the memory of a device; refuses a few bytes, which must be meant in a larger unit.
pub fn memory(text: &str) -> Result<Bytes, String> {
    const LEAST: u64 = 1 << 10;
    match text.trim().parse::<u64>() {
        Ok(bytes @ 1..LEAST) => Err(format!(
            "{bytes} is {bytes} bytes, as it has no unit; write {bytes}GiB or {bytes}MiB"
        )),
        _ => bytes(text),
    }
}

pub(crate) fn link(text: &str) -> Result<Link, String> {
    parsed(text)
}

pub(crate) fn host_link(text: &str) -> Result<HostLink, String> {
    parsed(text)
}

pub(crate) fn transformer(text: &str) -> Result<Transformer, String> {
    parsed(text)
}

/// Reads `auto`, `always` or `never`.
///
/// # Errors
/// It is another word.
pub fn when(text: &str) -> Result<When, String> {
    parsed(text)
}

/// Parses whether stages recompute, including the spellings of `train`.
pub fn recompute(text: &str) -> Result<When, String> {
    match text.trim() {
        "except-last" => Err(
            "`except-last` is for `train` without a plan; here each stage recomputes all \
             micro-batches or none: never, always or auto"
                .to_owned(),
        ),
        text => parsed(text),
    }
}

pub(crate) fn neighbours(text: &str) -> Result<Neighbours, String> {
    parsed(text)
}

pub(crate) fn all_reduce(text: &str) -> Result<AllReduce, String> {
    parsed(text)
}

/// Reads a whole number of at least 1.
///
/// # Errors
/// It is another text.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    whole_number(text, usize::MAX)
}

/// Parses a number of devices: a number, or a list as for `train`.
pub(crate) fn device_count(text: &str) -> Result<usize, String> {
    DeviceNames::count(text)
}

/// Parses the number of leaves of a tree of gradient sums.
pub fn leaves(text: &str) -> Result<usize, String> {
    let leaves = text.trim().parse().ok();
    let leaves = leaves.filter(|leaves| can_have_leaves(*leaves));
    leaves.ok_or_else(|| format!("must be a power of two from 1 to {MOST_LEAVES}"))
}

/// Parses a count, or `auto` as none.
pub fn count_or_auto(text: &str) -> Result<Option<usize>, String> {
    match text.trim() {
        "auto" => Ok(None),
        number => at_least_one(number)
            .map(Some)
            .map_err(|error| format!("{error}; `auto` leaves it to the plan")),
    }
}

/// Parses the layers of each stage: `3,5,4`.
pub(crate) fn balance(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(at_least_one).collect()
}

/// Parses a share: `5%` or `0.05`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim(), 0.01),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number * scale);
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a share from 0 to 100 %, such as 5% or 0.05".to_owned())
}

/// Reads a profile; a file that is not one is wrong use, with file, field and rule.
pub(crate) fn profile(path: &Path) -> Result<Profile, Failure> {
    Profile::read(path).map_err(|error| in_file("--profile", path, error))
}

/// Returns the error for the file of a flag; names the path once, even if `why` begins with it.
pub fn in_file(flag: &str, path: &Path, why: impl Display) -> Failure {
    let (why, path) = (why.to_string(), path.display().to_string());
    let rest = why
        .strip_prefix(&path)
        .and_then(|rest| rest.strip_prefix(": "));
    Failure::Usage(match rest {
        Some(rest) => format!("{flag} {path}: {rest}"),
        None => format!("{flag}: {why}"),
    })
}

/// Prints, in a line, doubts about a profile's measurements.
pub(crate) fn say_doubts(profile: &Profile) {
    let doubts = profile.doubts().unwrap_or_default();
    if let Some(doubts) = doubted(doubts) {
        super::say(&format!("note: of the profile: {doubts}"));
    }
}

/// Joins doubts about measurements, without their advice, which was given in full at measuring.
pub fn doubted(doubts: &[String]) -> Option<String> {
    let fact = |doubt: &String| doubt.split(": ").next().unwrap_or_default().to_owned();
    let facts: Vec<String> = doubts.iter().map(fact).collect();
    (!facts.is_empty()).then(|| {
        format!(
            "{}: times may be off; profile again on a quiet machine where it matters",
            facts.join("; ")
        )
    })
}

/// Reads a text file; `-` is standard input.
pub fn text(path: &Path) -> Result<String, Failure> {
    let usage = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let mut text = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MAX_FILE + 1)
            .read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text))
    };
    read.map_err(|error| usage(format!("cannot be read: {error}{}", path_instead(path))))?;
    if text.len() as u64 > MAX_FILE {
        return Err(usage(format!("is larger than {}", Bytes(MAX_FILE))));
    }
    String::from_utf8(text).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        usage(format!(
            "is not UTF-8 text: byte {offset} starts no character"
        ))
    })
}
