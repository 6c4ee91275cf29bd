//! Samples of several inputs, or of inputs alone: arrays named after the model's inputs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gpipe_partitioner::words::count;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::checks::Check;
use super::kept::Kept;
use super::loading::{Part, loaded};
use super::numbers::BLOCK;
use super::scaling::Scaling;
use super::shapes::{can_be, view};
use super::{SampleOptions, kinds, part, rounding};
use crate::arrays::NamedArrays;
use crate::{Array, Batches, DataError, Place, Source, Stack};
use gpipe_torch::Values;

/// Suffixes of training arrays.
const TRAIN: [&str; 2] = ["", "_train"];
/// Suffixes of held-out arrays; if there are several, the first one is used to choose checkpoints.
const TESTS: [&str; 4] = ["_val", "_valid", "_validation", "_test"];

/// Requirements of an array for a model.
#[derive(Debug, Clone)]
pub struct Field {
    /// Possible names of the array.
    pub names: Vec<String>,
    /// Shape of an item.
    pub shape: Vec<i64>,
    /// Check of its numbers.
    pub check: Check,
    /// Whether the model takes floats, so that bytes are scaled to 0 to 1.
    pub scales_bytes: bool,
}

/// Samples of several tensors: inputs first, then targets.
#[derive(Clone)]
pub struct Several {
    train: Rows,
    held_out: Option<Rows>,
    all: Rows,
    inputs: usize,
    /// Seed of the order; `None` for the order of the data.
    order: Option<u64>,
    data: String,
    notes: Vec<String>,
}

type Rows = Arc<dyn Source<Item = Vec<Tensor>>>;

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Several")
            .field("train", &self.train.identity())
            .finish_non_exhaustive()
    }
}

/// Arrays of the same length.
#[derive(Debug)]
struct Table {
    columns: Vec<(Array, Field)>,
}

impl Several {
    /// Opens the arrays of all fields, the first `inputs` of which are inputs. `None` if the path has
    /// no arrays, or if some are missing.
    ///
    /// # Errors
    /// The arrays cannot be read, or their lengths or shapes do not match.
    pub fn open(
        path: &Path,
        fields: &[Field],
        inputs: usize,
        options: &SampleOptions,
    ) -> Result<Option<Self>, DataError> {
        options.check()?;
        let Some((mut train, test)) = kinds::arrays(path)? else {
            return Ok(None);
        };
        let Some((names, table)) = Table::find(&mut train, fields, &TRAIN)? else {
            return Ok(None);
        };
        let test = match test {
            Some(mut test) => {
                let endings = [&TRAIN[..1], &TESTS].concat();
                Table::named(&mut test, &names, fields, &endings)?
            }
            None => Table::named(&mut train, &names, fields, &TESTS)?,
        };
        for own in std::iter::once(&table).chain(&test) {
            own.check_targets(inputs)?;
        }
        let notes = table.notes();
        let all: Rows = Arc::new(table);
        if all.is_empty() {
            return Err(DataError::bad_path(path, "there is no sample in it"));
        }
        let held = match test {
            Some(_) => 0,
            None => (all.len() as f64 * options.held_out) as usize,
        };
        let trained = all.len() - held;
        let order = options.order();
        let held_out = match test {
            Some(test) => Some(Arc::new(test) as Rows),
            None => (held > 0).then(|| part(&all, trained..all.len(), order)),
        };
        Ok(Some(Self {
            train: part(&all, 0..trained, order),
            held_out,
            inputs,
            order,
            data: all.identity(),
            notes,
            all,
        }))
    }

    /// Returns the item shape of each field's array; `None` if [`Several::open`] returns none.
    ///
    /// # Errors
    /// The arrays cannot be read, or their lengths differ.
    pub fn shapes(path: &Path, fields: &[Field]) -> Result<Option<Vec<Vec<i64>>>, DataError> {
        let Some((mut arrays, _)) = kinds::arrays(path)? else {
            return Ok(None);
        };
        for names in choices(fields) {
            if let Some(found) = arrays.all(&names, &TRAIN)? {
                let shapes = found.iter().map(|array| array.shape()[1..].to_vec());
                return Ok(Some(shapes.collect()));
            }
        }
        Ok(None)
    }

    /// Returns the names of a path's arrays; `None` if it has no arrays.
    ///
    /// # Errors
    /// The arrays cannot be read.
    pub fn names(path: &Path) -> Result<Option<Vec<String>>, DataError> {
        Ok(kinds::arrays(path)?.map(|(arrays, _)| arrays.names()))
    }

    /// As [`Samples::train_len`](super::Samples::train_len).
    pub fn train_len(&self) -> usize {
        self.train.len()
    }

    /// As [`Samples::held_out_len`](super::Samples::held_out_len).
    pub fn held_out_len(&self) -> usize {
        self.held_out.as_ref().map_or(0, |own| own.len())
    }

    /// As [`Samples::len`](super::Samples::len).
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Samples::describe`](super::Samples::describe).
    pub fn describe(&self) -> String {
        let held_out = match self.held_out_len() {
            0 => String::new(),
            held_out => format!(", {held_out} held out"),
        };
        format!(
            "{} to train on{held_out}",
            count(self.train.len(), "sample")
        )
    }

    /// As [`Samples::notes`](super::Samples::notes).
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// As [`Samples::kept`](super::Samples::kept).
    pub fn kept(&self) -> Value {
        json!(Kept {
            data: self.data.clone(),
            ..Kept::default()
        })
    }

    /// As [`Samples::check_same`](super::Samples::check_same).
    pub fn check_same(&self, kept: &Value) -> Result<(), DataError> {
        Kept::read(kept)?.check_same(&self.data)
    }

    /// Returns batches of a part, if it exists.
    pub fn values(
        &self,
        part: Part,
        size: usize,
    ) -> Option<Batches<impl Source, (Values, Values)>> {
        let source = match part {
            Part::Train => &self.train,
            Part::HeldOut => self.held_out.as_ref()?,
            Part::All => &self.all,
        };
        let inputs = self.inputs;
        let collate = move |rows: Vec<Vec<Tensor>>| {
            let width = rows.first().map_or(0, Vec::len);
            let mut columns: Vec<Vec<Tensor>> = (0..width).map(|_| Vec::new()).collect();
            for row in rows {
                let cells = columns.iter_mut().zip(row);
                cells.for_each(|(column, cell)| column.push(cell));
            }
            let stacked = columns.into_iter().map(<Tensor as Stack>::stack);
            let mut inputs_first = stacked.collect::<anyhow::Result<Vec<_>>>()?;
            let targets = inputs_first.split_off(inputs.min(inputs_first.len()));
            Ok((Values::from(inputs_first), Values::from(targets)))
        };
        Some(loaded(source, part, (size, self.order), collate))
    }
}

/// Returns combinations of the fields' possible names, by priority.
fn choices(fields: &[Field]) -> impl Iterator<Item = Vec<String>> {
    let choices = fields.iter().map(|field| field.names.len()).max();
    (0..choices.unwrap_or(0)).map(|choice| {
        let name = |field: &Field| {
            let own = field.names.get(choice).or(field.names.last());
            own.cloned().unwrap_or_default()
        };
        fields.iter().map(name).collect()
    })
}

impl Table {
    /// Returns the arrays of all fields, by the first combination of names that exists.
    fn find(
        arrays: &mut NamedArrays,
        fields: &[Field],
        endings: &[&str],
    ) -> Result<Option<(Vec<String>, Self)>, DataError> {
        for names in choices(fields) {
            if let Some(table) = Self::named(arrays, &names, fields, endings)? {
                return Ok(Some((names, table)));
            }
        }
        Ok(None)
    }

    fn named(
        arrays: &mut NamedArrays,
        names: &[String],
        fields: &[Field],
        endings: &[&str],
    ) -> Result<Option<Self>, DataError> {
        let Some(found) = arrays.all(names, endings)? else {
            return Ok(None);
        };
        for ((array, field), name) in found.iter().zip(fields).zip(names) {
            let own = &array.shape()[1..];
            if !can_be(own, &field.shape) {
                return Err(DataError::Settings(format!(
                    "the items of `{name}` have the shape {own:?}, and {:?} is needed",
                    field.shape
                )));
            }
        }
        let columns = found.into_iter().zip(fields.iter().cloned());
        Ok(Some(Self {
            columns: columns.collect(),
        }))
    }

    /// Checks that the targets (after so many inputs) are valid if they are single numbers: these are
    /// read quickly, before anything is built.
    fn check_targets(&self, inputs: usize) -> Result<(), DataError> {
        let targets = self.columns.iter().skip(inputs);
        for (array, field) in targets.filter(|(_, own)| own.shape.iter().product::<i64>() == 1) {
            for start in (0..array.len()).step_by(BLOCK) {
                let block = array.items(start..array.len().min(start + BLOCK))?;
                let wrong = |why| DataError::Settings(format!("`{}`: {why}", array.name()));
                let _ = field.check.of(block).map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// Notes arrays whose distinct values become equal for the model, a sentence each.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (array, field) in &self.columns {
            if !field.check.rounds() {
                continue;
            }
            let get = |index| array.get(0, index);
            if let Some(lost) = rounding::first(array.len(), get, &Scaling::default()) {
                let what = format!(
                    "number {} of `{}` (counted from 0)",
                    lost.place,
                    array.name()
                );
                notes.push(lost.said(&what, "subtract its mean from it"));
            }
        }
        notes
    }

    fn cell(array: &Array, field: &Field, index: usize) -> anyhow::Result<Tensor> {
        let cell = view(&array.get(0, index)?, &field.shape)?;
        let cell = if field.scales_bytes && array.kind() == Kind::Uint8 {
            cell.f_to_kind(Kind::Float)?.f_div_scalar(255.0)?
        } else {
            cell
        };
        field.check.of(cell)
    }
}

impl Source for Table {
    type Item = Vec<Tensor>;

    fn len(&self) -> usize {
        self.columns.first().map_or(0, |(array, _)| array.len())
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Vec<Tensor>, DataError> {
        let mut row = Vec::with_capacity(self.columns.len());
        for (array, field) in &self.columns {
            let cell = Self::cell(array, field, index);
            row.push(cell.map_err(|source| DataError::Item {
                place: self.place(epoch, index),
                source: source.context(format!("`{}`", array.name())),
            })?);
        }
        Ok(row)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        let first = self.columns.first();
        first.map_or(Place::Item(index), |(array, _)| array.place(epoch, index))
    }

    fn identity(&self) -> String {
        let all = self.columns.iter().map(|(array, _)| array.identity());
        all.collect::<Vec<_>>().join(", ")
    }
}
