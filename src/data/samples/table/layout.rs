//! Which columns are inputs, and which is the target.

use csv::StringRecord;

use super::cell::listed;
use super::forms::{Column, Forms};
use crate::samples::Missing;

/// The requested use of columns.
pub(super) struct Wanted<'a> {
    /// Input columns, if known.
    pub(super) columns: Option<Vec<String>>,
    /// Target column; the last by default.
    pub(super) target: Option<String>,
    /// Columns that are neither.
    pub(super) dropped: &'a [String],
    /// Forms of the columns, if known.
    pub(super) known: Option<Forms>,
    /// Handling of missing cells.
    pub(super) missing: Missing,
}

/// An input column.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) name: String,
    /// Index of the column.
    pub(super) place: usize,
    /// Form of the cells.
    pub(super) column: Column,
}

/// The use of each column.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) inputs: Vec<Input>,
    /// Name and index of the target column.
    pub(super) target: (String, usize),
}

impl Layout {
    pub(super) fn of(header: &StringRecord, wanted: &Wanted<'_>) -> Result<Self, String> {
        let all: Vec<&str> = header.iter().collect();
        let find = |name: &str| find(header, name).map(|place| (name.to_owned(), place));
        if all.is_empty() {
            return Err("there is no header: the table is empty".to_owned());
        }
        if let Some(place) = all.iter().position(|name| name.is_empty()) {
            // As pandas writes the index of a data frame.
            let how = if place == 0 {
                ": give it one in the first line, or, if it is the index of a pandas data frame, write the \
                 table with index=False"
            } else {
                ": give it one in the first line"
            };
            return Err(format!("column {} has no name{how}", place + 1));
        }
        let drops = |name: &str| wanted.dropped.iter().any(|own| own == name);
        let dropped = wanted.dropped.iter();
        let dropped: Vec<_> = dropped.map(|name| find(name)).collect::<Result<_, _>>()?;
        let last = all.iter().rev().find(|name| !drops(name));
        let last = last.ok_or("all columns are dropped: keep some")?;
        let target = find(wanted.target.as_deref().unwrap_or(last))?;
        if dropped.contains(&target) {
            return Err(format!(
                "column `{}` is the target and cannot be dropped: name another one with --target",
                target.0
            ));
        }
        let inputs: Vec<_> = if let Some(columns) = &wanted.columns {
            let own = columns.iter().map(|name| find(name));
            own.collect::<Result<_, _>>()?
        } else {
            let others = all.iter().enumerate();
            let others = others.filter(|(place, name)| *place != target.1 && !drops(name));
            let own = others.map(|(_, name)| find(name));
            own.collect::<Result<_, _>>()?
        };
        if inputs.is_empty() {
            let how = match target.0.find(['|', ':', ' ']) {
                Some(place) if all.len() == 1 => format!(
                    "; cells are told apart by commas, semicolons or tabs, and here it seems to be `{}`: \
                     write commas",
                    &target.0[place..=place]
                ),
                _ => String::new(),
            };
            return Err(format!(
                "beside the target `{}` there is no column{how}",
                target.0
            ));
        }
        let inputs = inputs.into_iter().map(|(name, place)| Input {
            name,
            place,
            column: Column::default(),
        });
        let mut own = Self {
            inputs: inputs.collect(),
            target,
        };
        own.take(wanted.known.clone().unwrap_or_default());
        Ok(own)
    }

    /// Sets the forms of the input columns.
    pub(super) fn take(&mut self, mut columns: Forms) {
        for input in &mut self.inputs {
            input.column = columns.remove(&input.name).unwrap_or_default();
        }
    }

    /// Returns the columns that are not plain numbers.
    pub(super) fn forms(&self) -> Forms {
        let plain = Column::default();
        let all = self.inputs.iter().filter(|own| own.column != plain);
        let all = all.map(|own| (own.name.clone(), own.column.clone()));
        all.collect()
    }

    /// Number of inputs per row.
    pub(super) fn width(&self) -> usize {
        self.inputs.iter().map(|own| own.column.width()).sum()
    }
}

/// Returns the index of a named column.
pub(super) fn find(header: &StringRecord, name: &str) -> Result<usize, String> {
    let mut places = header.iter().enumerate().filter(|(_, own)| *own == name);
    match (places.next(), places.next()) {
        (Some((place, _)), None) => Ok(place),
        (Some(_), Some(_)) => Err(format!("there are two columns `{name}`: rename one")),
        (None, _) => {
            let all: Vec<&str> = header.iter().collect();
            Err(format!(
                "there is no column `{name}`; there are {}",
                listed(&all)
            ))
        }
    }
}
