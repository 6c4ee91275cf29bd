//! What the cells of a column stand for: numbers, words or dates, and how many inputs they become.

use std::collections::{BTreeMap, BTreeSet};

use csv::StringRecord;
use gpipe_partitioner::words::{count, quoted};
use serde::{Deserialize, Serialize};

use super::cell::{ASKED, INPUTS, is_missing, is_number, number};
use super::dates::{self, Told};
use super::layout::{Layout, listed};

/// Different words that a column may have: more are rather names or sentences.
const MOST_WORDS: usize = 100;

/// What the cells of a column of inputs stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(in super::super) enum Form {
    /// An input.
    #[default]
    Numbers,
    /// An input for each of these, 1 in the rows that have it and 0 in the others.
    Words(Vec<String>),
    /// Days: see [`dates::Moment::numbers`].
    Dates,
    /// Days with times, as clocks told them.
    Times,
    /// The same of times with a zone, in UTC.
    TimesInUtc,
}

/// A column of inputs, as it was where it was trained on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Column {
    pub(super) form: Form,
    /// Whether one more input tells that a cell has no value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) gaps: bool,
}

/// Those columns that are more than numbers, by their names.
pub(in super::super) type Forms = BTreeMap<String, Column>;

impl Column {
    /// Inputs that it becomes.
    pub(super) fn width(&self) -> usize {
        let own = match &self.form {
            Form::Numbers => 1,
            Form::Words(words) => words.len(),
            Form::Dates => 5,
            Form::Times | Form::TimesInUtc => 7,
        };
        own + usize::from(self.gaps)
    }

    /// The numbers of a cell.
    ///
    /// # Errors
    /// It is none of what this column has.
    pub(super) fn take(
        &self,
        cell: &str,
        (name, trains): (&str, bool),
        x: &mut Vec<f64>,
    ) -> Result<(), String> {
        let instead = if trains { INPUTS } else { ASKED };
        match &self.form {
            Form::Numbers => x.push(number(cell, name, instead)?),
            Form::Words(words) => x.extend(numbers(cell, name, words)?),
            Form::Dates | Form::Times | Form::TimesInUtc => {
                x.extend(self.moment(cell, name)?.numbers(self.form != Form::Dates));
            }
        }
        x.extend(self.gaps.then_some(0.0));
        Ok(())
    }

    /// When a cell is, where that is told as in the others.
    fn moment(&self, cell: &str, name: &str) -> Result<dates::Moment, String> {
        let moment = dates::moment(cell).ok_or_else(|| {
            format!(
                "column `{name}`: `{cell}` is no date, as the others are: write it as 2024-01-31"
            )
        })?;
        let is_utc = self.form == Form::TimesInUtc;
        if is_utc == (moment.told == Told::Zone) {
            return Ok(moment);
        }
        Err(mixed(name, cell, is_utc))
    }

    /// The numbers of a cell without a value: no word, or what is filled in when inputs are scaled.
    pub(super) fn take_nothing(&self, x: &mut Vec<f64>) {
        let own = self.width() - usize::from(self.gaps);
        let nothing = if matches!(self.form, Form::Words(_)) {
            0.0
        } else {
            f64::NAN
        };
        x.extend(std::iter::repeat_n(nothing, own));
        x.extend(self.gaps.then_some(1.0));
    }
}

/// Looks for what columns are.
#[derive(Debug)]
pub(super) struct Search<'a> {
    layout: &'a Layout,
    seen: Vec<Seen>,
    /// Whether gaps are told apart.
    gaps: bool,
}

/// What was seen of a column.
#[derive(Debug, Default)]
struct Seen {
    number: bool,
    gap: bool,
    texts: Texts,
    words: BTreeSet<String>,
}

/// What all texts of a column are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Texts {
    /// Days, and what most is told of one.
    Days(Told),
    /// One at least is none.
    Words,
}

impl Default for Texts {
    fn default() -> Self {
        Self::Days(Told::Day)
    }
}

impl<'a> Search<'a> {
    pub(super) fn new(layout: &'a Layout, gaps: bool) -> Self {
        let seen = layout.inputs.iter().map(|_| Seen::default());
        let seen = seen.collect();
        Self { layout, seen, gaps }
    }

    /// Looks at a row. *Returns* whether there may be anything more to find.
    pub(super) fn row(&mut self, record: &StringRecord) -> bool {
        for (input, seen) in self.layout.inputs.iter().zip(&mut self.seen) {
            let cell = record.get(input.place).unwrap_or_default();
            if is_missing(cell) {
                seen.gap = true;
            } else if seen.number || is_number(cell) {
                seen.number = true;
            } else {
                seen.text(cell);
            }
        }
        self.gaps || self.seen.iter().any(|own| !own.number)
    }

    /// What was found.
    ///
    /// # Errors
    /// There are too many words of a column, or dates that nobody can read.
    pub(super) fn forms(self) -> Result<Forms, String> {
        let names = self.layout.inputs.iter().map(|own| own.name.as_str());
        let seen: Vec<(&str, Seen)> = names.zip(self.seen).collect();
        refuse(&seen)?;
        let all = seen.into_iter().map(|(name, seen)| {
            let gaps = self.gaps && seen.gap;
            let form = seen.form();
            (name.to_owned(), Column { form, gaps })
        });
        Ok(all.filter(|(_, own)| *own != Column::default()).collect())
    }
}

impl Seen {
    fn text(&mut self, cell: &str) {
        if let Texts::Days(most) = self.texts {
            self.texts = match dates::moment(cell) {
                None => Texts::Words,
                Some(own) if own.told == Told::Day => self.texts,
                // Rows that tell another are refused when they are taken.
                Some(own) if most == Told::Day => Texts::Days(own.told),
                Some(_) => self.texts,
            };
        }
        if self.words.len() <= MOST_WORDS {
            self.words.insert(cell.to_owned());
        }
    }

    /// Whether it has so many texts that these are no words.
    fn has_texts(&self) -> bool {
        !self.number && self.texts == Texts::Words && self.words.len() > MOST_WORDS
    }

    fn form(self) -> Form {
        if self.number || self.words.is_empty() {
            return Form::Numbers;
        }
        match self.texts {
            Texts::Days(told) => told.form(),
            Texts::Words => Form::Words(self.words.into_iter().collect()),
        }
    }
}

/// Refuses columns of which nothing can be made.
fn refuse(seen: &[(&str, Seen)]) -> Result<(), String> {
    let ambiguous = |own: &&(&str, Seen)| {
        let Seen { number, words, .. } = &own.1;
        !number && !words.is_empty() && words.iter().all(|word| dates::is_ambiguous(word))
    };
    if let Some((name, seen)) = seen.iter().find(ambiguous) {
        let example = seen.words.first().map_or("", String::as_str);
        return Err(format!(
            "column `{name}` has dates such as {example}, of which nothing says what is the day and what \
             the month: write them as 2024-01-31, or leave the column out (--drop-columns {})",
            quoted(name)
        ));
    }
    let texts: Vec<_> = seen.iter().filter(|own| own.1.has_texts()).collect();
    let Some((_, first)) = texts.first() else {
        return Ok(());
    };
    let examples: Vec<&String> = first.words.iter().take(2).collect();
    let names: Vec<&str> = texts.iter().map(|(name, _)| *name).collect();
    let (columns, have, them) = match &names[..] {
        [name] => (format!("column `{name}`"), "has", "it"),
        names => (format!("columns {}", listed(names)), "have", "them"),
    };
    Err(format!(
        "{columns} {have} texts, such as {}, and more than {MOST_WORDS} different ones, each of which \
         would be an input: leave {them} out (--drop-columns {})",
        listed(&examples),
        quoted(names.join(","))
    ))
}

/// What is said of a cell of a column of dates that tells its zone, and others tell none, or the other way
/// round.
fn mixed(name: &str, cell: &str, others_do: bool) -> String {
    let what = if others_do {
        "tells no zone, and others tell theirs"
    } else {
        "tells its zone, and others tell none"
    };
    format!(
        "column `{name}`: `{cell}` {what}: write all of them in UTC (2024-01-31T18:30:00Z), or all without a \
         zone"
    )
}

/// The numbers that stand for a cell of a column of these words.
fn numbers(
    cell: &str,
    column: &str,
    words: &[String],
) -> Result<impl Iterator<Item = f64>, String> {
    let own = words.iter().position(|word| word == cell);
    let own = own.ok_or_else(|| {
        format!(
            "column `{column}`: there was no `{cell}` in what was trained on; there were {}",
            listed(words)
        )
    })?;
    Ok((0..words.len()).map(move |word| f64::from(u8::from(word == own))))
}

/// The column of these that has the number at a place of an input.
pub(in super::super) fn column_at<'a>(
    (names, forms): (&'a [String], &Forms),
    place: usize,
) -> Option<&'a str> {
    let plain = Column::default();
    let mut left = place;
    let own = names.iter().find(|name| {
        let width = forms.get(*name).unwrap_or(&plain).width();
        let is_in = left < width;
        left = left.saturating_sub(width);
        is_in
    });
    own.map(String::as_str)
}

/// What is said of columns that are more than numbers.
pub(super) fn said(columns: &Forms) -> Vec<String> {
    let all = columns.iter().filter_map(|(name, column)| {
        let inputs = count(column.width() - usize::from(column.gaps), "input");
        match column.form {
            Form::Numbers => None,
            Form::Words(_) => Some(format!("`{name}` is {inputs}, one for each of its words")),
            Form::Dates => Some(format!(
                "`{name}` is {inputs}: the days, and the place in the year and the week"
            )),
            Form::Times | Form::TimesInUtc => Some(format!(
                "`{name}` is {inputs}: the days, and the place in the year, the week and the day{}",
                if column.form == Form::TimesInUtc {
                    ", in UTC"
                } else {
                    ""
                }
            )),
        }
    });
    let gaps = columns.iter().filter(|(_, own)| own.gaps);
    let gaps: Vec<&String> = gaps.map(|(name, _)| name).collect();
    let of_each = if gaps.len() == 1 { "" } else { " of each" };
    let said = (!gaps.is_empty()).then(|| {
        format!(
            "cells of {} without a value are filled in, and one more input{of_each} tells which",
            listed(&gaps)
        )
    });
    all.chain(said).collect()
}
