//! SLURM's lists of hosts: `node[01-04,7],gpu-a[1-2]-x` is `node01`, `node02`, `node03`,
//! `node04`, `node7`, `gpu-a1-x`, `gpu-a2-x`.

use std::fmt::Write as _;

use thiserror::Error;

/// Error of a text that is not a list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{list}` is no list of hosts: {why}")]
pub struct NodelistError {
    list: String,
    why: String,
}

/// A list of hosts, as SLURM writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nodelist {
    /// Not empty.
    patterns: Vec<Pattern>,
}

/// Alternating texts and number ranges; stands for a name per choice of numbers, where the last
/// range varies fastest.
type Pattern = Vec<Part>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Numbers(Vec<Range>),
}

/// From the first to the last number, with a minimum number of digits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    digits: usize,
}

impl Nodelist {
    /// Reads a list.
    ///
    /// # Errors
    /// It is empty, a bracket is not closed, or brackets contain something other than numbers.
    pub(super) fn parse(list: &str) -> Result<Self, NodelistError> {
        let patterns = split(list).and_then(|names| names.into_iter().map(pattern).collect());
        match patterns {
            Ok(patterns) => Ok(Self { patterns }),
            Err(why) => Err(NodelistError {
                list: list.to_owned(),
                why,
            }),
        }
    }

    /// Returns the first host.
    pub(super) fn first(&self) -> String {
        self.hosts().next().unwrap_or_default()
    }

    /// Iterates over all hosts in order, lazily: a few characters may describe millions.
    pub(super) fn hosts(&self) -> impl Iterator<Item = String> + '_ {
        self.patterns.iter().flat_map(|pattern| names(pattern))
    }
}

/// Splits at the commas outside brackets.
fn split(list: &str) -> Result<Vec<&str>, String> {
    let (mut names, mut begin, mut within) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if within => return Err("a bracket is within another one".to_owned()),
            ']' if !within => return Err("a bracket is closed that is not open".to_owned()),
            '[' | ']' => within = c == '[',
            ',' if !within => {
                names.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if within {
        return Err("a bracket is not closed".to_owned());
    }
    names.push(&list[begin..]);
    if names.iter().any(|name| name.is_empty()) {
        return Err("a name is empty".to_owned());
    }
    Ok(names)
}

/// Parses a name; `split` has checked that brackets are closed and not nested.
fn pattern(name: &str) -> Result<Pattern, String> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some((text, numbers)) = rest.split_once('[') {
        let (numbers, behind) = numbers.split_once(']').unwrap_or((numbers, ""));
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        parts.push(Part::Numbers(
            numbers.split(',').map(range).collect::<Result<_, _>>()?,
        ));
        rest = behind;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

fn range(text: &str) -> Result<Range, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = plain.then(|| digits.parse::<u64>().ok()).flatten();
        number.ok_or_else(|| format!("`{text}` is no number and no range of numbers"))
    };
    let range = Range {
        first: number(first)?,
        last: number(last)?,
        digits: first.len(),
    };
    if range.first > range.last {
        return Err(format!("`{text}` ends before it begins"));
    }
    Ok(range)
}

impl Range {
    fn numbers(&self) -> impl Iterator<Item = String> + '_ {
        (self.first..=self.last).map(|number| format!("{number:0digits$}", digits = self.digits))
    }
}

fn names(pattern: &[Part]) -> Box<dyn Iterator<Item = String> + '_> {
    let Some((part, rest)) = pattern.split_first() else {
        return Box::new(std::iter::once(String::new()));
    };
    let with_rest = move |begin: String| {
        names(rest).map(move |end| {
            let mut name = begin.clone();
            // Writing to a string cannot fail.
            let _ = write!(name, "{end}");
            name
        })
    };
    match part {
        Part::Text(text) => Box::new(with_rest(text.clone())),
        Part::Numbers(ranges) => {
            let numbers = ranges.iter().flat_map(Range::numbers);
            Box::new(numbers.flat_map(with_rest))
        }
    }
}

#[cfg(test)]
mod tests;
