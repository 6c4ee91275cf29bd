//! The form of a column's cells: numbers, words or dates, and the number of inputs that they become.

use std::collections::BTreeMap;

use gpipe_partitioner::words::count;
use serde::{Deserialize, Serialize};

use super::cell::{ASKED, INPUTS, listed, number};
use super::dates::{self, Told};

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
