//! Kinds of columns, found by a look at the cells of all rows.

use std::collections::BTreeSet;

use csv::StringRecord;
use gpipe_partitioner::words::quoted;

use super::cell::{is_missing, is_number, listed};
use super::dates::{self, Told};
use super::forms::{Column, Form, Forms};
use super::layout::Layout;

/// Limit of distinct words in a column: more are names or sentences.
const MOST_WORDS: usize = 100;

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
            Texts::Days(told) => Form::of(told),
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
