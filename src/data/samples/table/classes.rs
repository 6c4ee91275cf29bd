//! Class targets: their names and numbers.

use std::collections::HashMap;

use super::cell::listed;
use super::layout::Layout;
use super::{Learns, Table};
use crate::DataError;

impl Table {
    /// Converts class names to numbers, if targets are classes.
    pub(super) fn named(
        mut self,
        labels: &[String],
        known: Option<Vec<String>>,
        layout: Layout,
    ) -> Result<(Self, Option<Vec<String>>, Layout), DataError> {
        if self.learns != Learns::Classes {
            return Ok((self, None, layout));
        }
        let names = match known {
            Some(names) => names,
            None => named(labels).map_err(|why| {
                let what = format!("column `{}` {why}", layout.target.0);
                DataError::bad_path(self.origin.path(), what)
            })?,
        };
        self.number(labels, &names, &layout.target.0)?;
        Ok((self, Some(names), layout))
    }

    /// Maps class names to their numbers.
    fn number(
        &mut self,
        labels: &[String],
        names: &[String],
        column: &str,
    ) -> Result<(), DataError> {
        let are_numbers = are_numbers(names);
        let numbers = names.iter().enumerate();
        let numbers = numbers.map(|(number, name)| (Key::of(name, are_numbers), number));
        let numbers: HashMap<Key<'_>, usize> = numbers.collect();
        for (row, label) in labels.iter().enumerate() {
            let number = numbers.get(&Key::of(label, are_numbers)).ok_or_else(|| {
                let what = format!(
                    "column `{column}`: there was no class `{label}` in what was trained on; there \
                     were {}",
                    listed(names)
                );
                let place = self.origin.place(row);
                DataError::Bad { place, what }
            })?;
            self.y.push(*number as f64);
        }
        Ok(())
    }
}

/// Identity of a class.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    Name(&'a str),
    /// The bits of a number: `1` and `1.0` are the same class, and so are `0` and `-0`.
    Number(u64),
}

impl<'a> Key<'a> {
    fn of(name: &'a str, is_number: bool) -> Self {
        match name.parse::<f64>() {
            // The sum of -0 and 0 is 0.
            Ok(number) if is_number => Self::Number((number + 0.0).to_bits()),
            _ => Self::Name(name),
        }
    }
}

fn are_numbers(names: &[String]) -> bool {
    names.iter().all(|name| name.parse::<f64>().is_ok())
}

/// Returns the classes in order: numbers by size, names alphabetically. A number spelled in several
/// ways has the shortest name.
fn named(labels: &[String]) -> Result<Vec<String>, String> {
    let mut names = labels.to_vec();
    names.sort_unstable();
    names.dedup();
    if !are_numbers(&names) {
        return Ok(names);
    }
    let number = |name: &String| name.parse::<f64>().unwrap_or_default() + 0.0;
    if let Some(broken) = names.iter().find(|name| number(name).fract() != 0.0) {
        return Err(format!(
            "has numbers such as {broken}, and this model tells classes: name the column of the classes \
             with --target, or take a model and a loss for numbers, such as `mlp` with --loss mse"
        ));
    }
    names.sort_by(|one, other| {
        let of_length = || one.len().cmp(&other.len());
        let order = number(one).total_cmp(&number(other));
        order.then_with(of_length).then_with(|| one.cmp(other))
    });
    names.dedup_by(|one, other| number(one).total_cmp(&number(other)).is_eq());
    Ok(names)
}
