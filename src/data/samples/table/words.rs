//! Columns of words, such as the name of a city: an input for each word, 1 in the rows that have it
//! and 0 in the others.

use std::collections::{BTreeMap, BTreeSet};

use csv::StringRecord;
use gpipe_partitioner::words::count;

use super::cell::{is_missing, is_number};
use super::layout::{Layout, listed};

/// Different words that a column may have: more are rather names, dates or sentences.
const MOST_WORDS: usize = 100;

/// The words of columns, by the columns' names.
pub(in super::super) type Words = BTreeMap<String, Vec<String>>;

/// Looks for columns of words: those in which no cell is a number.
#[derive(Debug)]
pub(super) struct Search<'a> {
    layout: &'a Layout,
    /// What was seen of each input; none where it is one of numbers.
    seen: Vec<Option<BTreeSet<String>>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(layout: &'a Layout) -> Self {
        let seen = vec![Some(BTreeSet::new()); layout.inputs.len()];
        Self { layout, seen }
    }

    /// Looks at a row. *Returns* whether there may be anything more to find.
    pub(super) fn row(&mut self, record: &StringRecord) -> bool {
        for (input, seen) in self.layout.inputs.iter().zip(&mut self.seen) {
            let cell = record.get(input.place).unwrap_or_default();
            match seen {
                Some(_) if is_number(cell) => *seen = None,
                Some(words) if words.len() <= MOST_WORDS && !is_missing(cell) => {
                    words.insert(cell.to_owned());
                }
                _ => {}
            }
        }
        self.seen.iter().any(Option::is_some)
    }

    /// What was found.
    ///
    /// # Errors
    /// There are too many of a column.
    pub(super) fn words(self) -> Result<Words, String> {
        let mut all = Words::new();
        let mut texts: Vec<(&str, [String; 2])> = Vec::new();
        for (input, words) in self.layout.inputs.iter().zip(self.seen) {
            let Some(words) = words.filter(|own| !own.is_empty()) else {
                continue;
            };
            let words: Vec<String> = words.into_iter().collect();
            if words.len() > MOST_WORDS {
                texts.push((&input.name, [words[0].clone(), words[1].clone()]));
                continue;
            }
            all.insert(input.name.clone(), words);
        }
        let Some((_, examples)) = texts.first() else {
            return Ok(all);
        };
        let names: Vec<&str> = texts.iter().map(|(name, _)| *name).collect();
        let (columns, have, them) = match &names[..] {
            [name] => (format!("column `{name}`"), "has", "it"),
            names => (format!("columns {}", listed(names)), "have", "them"),
        };
        Err(format!(
            "{columns} {have} texts, such as {}, and more than {MOST_WORDS} different ones, each of which \
             would be an input: leave {them} out (--drop-columns {})",
            listed(examples),
            names.join(",")
        ))
    }
}

/// The numbers that stand for a cell of a column of these words.
///
/// # Errors
/// It is none of them.
pub(super) fn numbers(
    cell: &str,
    column: &str,
    words: &[String],
) -> Result<impl Iterator<Item = f32>, String> {
    let own = words.iter().position(|word| word == cell);
    let own = own.ok_or_else(|| {
        format!(
            "column `{column}`: there was no `{cell}` in what was trained on; there were {}",
            listed(words)
        )
    })?;
    Ok((0..words.len()).map(move |word| f32::from(u8::from(word == own))))
}

/// What is said of columns of words.
pub(super) fn said(words: &Words) -> Vec<String> {
    let all = words.iter();
    let all = all.map(|(column, words)| {
        format!(
            "`{column}` is {}, one for each of its words",
            count(words.len(), "input")
        )
    });
    all.collect()
}
