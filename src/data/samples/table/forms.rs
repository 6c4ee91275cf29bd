//! What the cells of a column stand for: numbers, words or dates, and how many inputs they become.

use std::collections::BTreeMap;

use gpipe_partitioner::words::count;
use serde::{Deserialize, Serialize};

use super::cell::{ASKED, INPUTS, listed, number};
use super::dates::{self, Told};

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

impl Form {
    /// The form of a column whose cells tell this of when they are.
    pub(super) fn of(told: Told) -> Self {
        match told {
            Told::Day => Self::Dates,
            Told::Clock => Self::Times,
            Told::Zone => Self::TimesInUtc,
        }
    }
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
