//! The form of a column's cells: numbers, words or dates, and the number of inputs that they become.

use std::collections::{BTreeMap, BTreeSet};

use csv::StringRecord;
use gpipe_partitioner::words::{count, quoted};
use serde::{Deserialize, Serialize};

use super::cell::{ASKED, INPUTS, is_missing, is_number, number};
use super::dates::{self, Told};
use super::layout::{Layout, listed};

/// Limit of distinct words in a column: more are names or sentences.
const MOST_WORDS: usize = 100;

/// The form of an input column's cells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(in super::super) enum Form {
    /// A single input.
    #[default]
    Numbers,
    /// One input per word, 1 in the rows with that word and 0 in others.
    Words(Vec<String>),
    /// Days: see [`dates::Moment::numbers`].
    Dates,
    /// Days with local times.
    Times,
    /// Days with times in UTC, from cells with a zone.
    TimesInUtc,
}

/// An input column, as in the training data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Column {
    pub(super) form: Form,
    /// Whether an additional input marks missing cells.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) gaps: bool,
}

/// The columns that are not plain numbers, by name.
pub(in super::super) type Forms = BTreeMap<String, Column>;

impl Column {
    /// Number of inputs of the column.
    pub(super) fn width(&self) -> usize {
        let own = match &self.form {
            Form::Numbers => 1,
            Form::Words(words) => words.len(),
            Form::Dates => 5,
            Form::Times | Form::TimesInUtc => 7,
        };
        own + usize::from(self.gaps)
    }

    /// Appends the numbers of a cell.
    ///
    /// # Errors
    /// The cell does not fit the column's form.
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

    /// Parses the moment of a cell, whose precision must match the column's.
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

    /// Appends the numbers of a missing cell: no word, or NaN, which scaling fills in.
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

/// Detects the forms of columns.
#[derive(Debug)]
pub(super) struct Search<'a> {
    layout: &'a Layout,
    seen: Vec<Seen>,
    /// Whether gaps are marked.
    gaps: bool,
}

/// Observations of a column.
#[derive(Debug, Default)]
struct Seen {
    number: bool,
    gap: bool,
    texts: Texts,
    words: BTreeSet<String>,
}

/// The kind of a column's texts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Texts {
    /// Days, with the highest precision seen.
    Days(Told),
    /// At least one text is not a date.
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

    /// Examines a row. *Returns* whether further rows may change the result.
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

    /// Returns the forms found.
    ///
    /// # Errors
    /// A column has too many words, or ambiguous dates.
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
                // Rows of another precision are rejected when they are read.
                Some(own) if most == Told::Day => Texts::Days(own.told),
                Some(_) => self.texts,
            };
        }
        if self.words.len() <= MOST_WORDS {
            self.words.insert(cell.to_owned());
        }
    }

    /// Whether there are too many distinct texts to be words.
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

/// Rejects columns of unsupported forms.
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

/// Explains that some cells of a date column have a zone and others do not.
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

/// Returns the numbers of a cell in a column of these words.
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

/// Returns the column of an input's index.
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

/// Notes about columns that are not plain numbers.
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
