//! Targets that are classes: their names, and the numbers of these.

use std::collections::HashMap;

use super::layout::{Layout, listed};
use super::{Learns, Table};
use crate::data::DataError;

impl Table {
    /// With the numbers of its classes, where it has such.
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

    /// Class names to their numbers.
    fn number(
        &mut self,
        labels: &[String],
        names: &[String],
        column: &str,
    ) -> Result<(), DataError> {
        let numbers = names
            .iter()
            .enumerate()
            .map(|(number, name)| (name.as_str(), number));
        let numbers: HashMap<&str, usize> = numbers.collect();
        for (row, label) in labels.iter().enumerate() {
            let number = numbers.get(label.as_str()).ok_or_else(|| {
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

/// The classes, in the order of their numbers: numbers by size, names by letters.
fn named(labels: &[String]) -> Result<Vec<String>, String> {
    let mut names = labels.to_vec();
    names.sort_unstable();
    names.dedup();
    let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
    let Some(numbers) = numbers else {
        return Ok(names);
    };
    if let Some(broken) = numbers.iter().position(|number| number.fract() != 0.0) {
        return Err(format!(
            "has numbers such as {}, and this model tells classes: name the column of the classes \
             with --target, or take a model and a loss for numbers, such as `mlp` with --loss mse",
            names[broken]
        ));
    }
    names.sort_by(|one, other| {
        let number = |name: &String| name.parse::<f64>().unwrap_or_default();
        number(one)
            .total_cmp(&number(other))
            .then_with(|| one.cmp(other))
    });
    Ok(names)
}
