//! Schedules as CSV, in the format of PyTorch's pipelining.
//!
//! One row per device, one cell per action, empty cells for bubbles. Cells:
//! - `2F0`, `0B1`, `0I3`, `0W3`: computation, `{stage}{letter}{micro-batch}`, and
//!   our own `0R3` for a recompute;
//! - `0OFFLOAD3`, our own: the activations of this forward are offloaded to the host until they are
//!   needed;
//! - `(0F1;7B0)OVERLAP_F_B`: a forward and a backward as one unit;
//! - `1SEND_F3`, `2RECV_F3`, `1SEND_B3`, `0RECV_B3`: communication; it follows from the
//!   computation, so it is skipped when read;
//! - `0UNSHARD`, `0RESHARD`, `0REDUCE_GRAD`: sharded parameters, which we do not have: skipped as
//!   well.
//!
//! *Source*: `torch/distributed/pipelining/schedules.py`, `_Action` and
//! `_PipelineScheduleRuntime._dump_csv` / `_load_csv`.

use super::{Action, ActionKind, MAX_CELLS, MAX_STAGES, Schedule};
use crate::ids::{MicroId, StageId};
use std::fmt::Write as _;

/// Why a CSV is not a schedule. Rows and cells count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// A cell that is not an action.
    #[error(
        "row {row}, cell {cell}: `{text}` is no action; actions look like 2F0, 0I3, 0W3, 1SEND_F3, \
         (0F1;7B0)OVERLAP_F_B or 0UNSHARD"
    )]
    NotAnAction {
        /// The row.
        row: usize,
        /// The cell.
        cell: usize,
        /// Its first characters.
        text: String,
    },
    /// An action that we cannot represent.
    #[error("row {row}, cell {cell}: `{text}`: {reason}")]
    Unsupported {
        /// The row.
        row: usize,
        /// The cell.
        cell: usize,
        /// Its first characters.
        text: String,
        /// The requirement that we cannot meet.
        reason: &'static str,
    },
    /// A stage or micro-batch number beyond any pipeline.
    #[error(
        "row {row}, cell {cell}: `{text}` is too large: at most {MAX_STAGES} stages, \
         and stages times micro-batches at most {MAX_CELLS}"
    )]
    TooLarge {
        /// The row.
        row: usize,
        /// The cell.
        cell: usize,
        /// Its first characters.
        text: String,
    },
    /// More rows than any pipeline has devices.
    #[error("row {row}: at most {MAX_STAGES} devices")]
    TooManyDevices {
        /// The first row too many.
        row: usize,
    },
    /// The file has no computation.
    #[error("there is no action in it")]
    Empty,
}

impl Schedule {
    /// Parses a schedule in CSV. The highest numbers in it determine the numbers of stages and
    /// micro-batches; legality is left to [`Schedule::check`].
    ///
    /// # Errors
    /// [`CsvError`] with the row and the cell.
    pub fn from_csv(name: impl Into<String>, text: &str) -> Result<Self, CsvError> {
        let (mut devices, mut pairs) = (Vec::new(), Vec::new());
        let mut offloads = Vec::new();
        // An empty row is a device without actions.
        for (row, line) in text.lines().enumerate() {
            if row >= MAX_STAGES {
                return Err(CsvError::TooManyDevices { row: row + 1 });
            }
            let mut reader = Row {
                number: row + 1,
                ..Row::default()
            };
            for (cell, text) in cells(line) {
                reader.cell = cell;
                reader.read(text)?;
            }
            offloads.append(&mut reader.offloads);
            devices.push(reader.actions);
            pairs.push(reader.pairs);
        }
        let all = || devices.iter().flatten();
        let stages = all()
            .map(|a: &Action| a.stage.index() + 1)
            .max()
            .ok_or(CsvError::Empty)?;
        let micros = all()
            .map(|a| a.micro.index() + 1)
            .max()
            .ok_or(CsvError::Empty)?;
        if stages
            .checked_mul(micros)
            .is_none_or(|cells| cells > MAX_CELLS)
        {
            let text = format!("{stages} stages times {micros} micro-batches");
            return Err(CsvError::TooLarge {
                row: devices.len(),
                cell: 1,
                text,
            });
        }
        let schedule = Self::new(name, stages, micros, devices).with_pairs(pairs);
        Ok(schedule.with_offloads(offloads))
    }

    /// Writes the schedule's computation as CSV, including overlapped pairs and offloads.
    pub fn to_csv(&self) -> String {
        self.write_csv(|row, action, before| {
            let of = (action.stage, action.micro);
            if action.kind == ActionKind::Forward && !before && self.offloads().contains(&of) {
                row.push(format!("{}OFFLOAD{}", action.stage, action.micro));
            }
        })
    }

    /// Writes row by row; `around` may add cells before and after an action.
    pub(crate) fn write_csv(&self, around: impl Fn(&mut Vec<String>, Action, bool)) -> String {
        let mut text = String::new();
        for (device, list) in self.iter() {
            let mut row: Vec<String> = Vec::with_capacity(list.len());
            let mut position = 0;
            while let Some(&action) = list.get(position) {
                let partner = self.partner(device, position);
                let unit: Vec<Action> = std::iter::once(action).chain(partner).collect();
                for &action in &unit {
                    around(&mut row, action, true);
                }
                row.push(match partner {
                    Some(partner) => format!("({action};{partner})OVERLAP_F_B"),
                    None => action.to_string(),
                });
                for &action in &unit {
                    around(&mut row, action, false);
                }
                position += unit.len();
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", row.join(","));
        }
        text
    }
}

/// Returns the nonempty cells of a line, by number, without the quotes of CSV writers.
fn cells(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.split(',')
        .enumerate()
        .map(move |(cell, text)| (cell + 1, clean(text)))
        .filter(|(_, text)| !text.is_empty())
}

/// A cell without blanks and quotes around it.
fn clean(cell: &str) -> &str {
    let cell = cell.trim();
    let bare = cell
        .strip_prefix('"')
        .and_then(|cell| cell.strip_suffix('"'));
    bare.unwrap_or(cell).trim()
}

/// A row being read.
#[derive(Default)]
struct Row {
    number: usize,
    cell: usize,
    actions: Vec<Action>,
    pairs: Vec<usize>,
    offloads: Vec<(StageId, MicroId)>,
}

/// A parsed cell.
enum Cell {
    Run(Action),
    Offload(StageId, MicroId),
    /// A valid cell that requires no action.
    Skip,
}

impl Row {
    fn read(&mut self, text: &str) -> Result<(), CsvError> {
        let Some(inner) = text.strip_prefix('(') else {
            match self.single(text)? {
                Cell::Run(action) => self.actions.push(action),
                Cell::Offload(stage, micro) => self.offloads.push((stage, micro)),
                Cell::Skip => {}
            }
            return Ok(());
        };
        let (inner, kind) = inner
            .split_once(')')
            .ok_or_else(|| self.not_an_action(text))?;
        if kind != "OVERLAP_F_B" {
            return Err(self.unsupported(text, "of actions in brackets only OVERLAP_F_B is known"));
        }
        let start = self.actions.len();
        for part in inner
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            match self.single(part)? {
                Cell::Run(action) => self.actions.push(action),
                Cell::Offload(..) | Cell::Skip => {
                    return Err(self.unsupported(text, "only computation overlaps"));
                }
            }
        }
        let kinds: Vec<ActionKind> = self.actions[start..]
            .iter()
            .map(|action| action.kind)
            .collect();
        // Other actions in brackets run one after the other.
        if kinds == [ActionKind::Forward, ActionKind::Backward] {
            self.pairs.push(start);
        }
        Ok(())
    }

    fn single(&self, text: &str) -> Result<Cell, CsvError> {
        let digits = |c: char| c.is_ascii_digit();
        let rest = text.trim_start_matches(digits);
        let stage = &text[..text.len() - rest.len()];
        let word = rest.trim_end_matches(digits);
        let micro = &rest[word.len()..];
        let numbered = match word {
            "F" | "B" | "I" | "W" | "R" | "OFFLOAD" | "SEND_F" | "RECV_F" | "SEND_B" | "RECV_B" => {
                true
            }
            // In PyTorch, these may have a micro-batch.
            "UNSHARD" | "RESHARD" | "REDUCE_GRAD" => false,
            "OVERLAP_F_B" => {
                return Err(self.unsupported(text, "an OVERLAP_F_B names its actions in brackets"));
            }
            _ => return Err(self.not_an_action(text)),
        };
        if stage.is_empty() || (numbered && micro.is_empty()) {
            return Err(self.not_an_action(text));
        }
        let stage = self.number(stage, MAX_STAGES, text)?;
        let micro = self.number(if micro.is_empty() { "0" } else { micro }, MAX_CELLS, text)?;
        if word == "OFFLOAD" {
            return Ok(Cell::Offload(StageId(stage), MicroId(micro)));
        }
        let letter = word.chars().next().filter(|_| word.len() == 1);
        Ok(match letter.and_then(ActionKind::from_letter) {
            Some(kind) => Cell::Run(Action::new(stage, kind, micro)),
            None => Cell::Skip,
        })
    }

    fn number(&self, digits: &str, limit: usize, text: &str) -> Result<usize, CsvError> {
        let number = digits.parse().ok().filter(|&number: &usize| number < limit);
        number.ok_or_else(|| CsvError::TooLarge {
            row: self.number,
            cell: self.cell,
            text: shortened(text),
        })
    }

    fn not_an_action(&self, text: &str) -> CsvError {
        CsvError::NotAnAction {
            row: self.number,
            cell: self.cell,
            text: shortened(text),
        }
    }

    fn unsupported(&self, text: &str, reason: &'static str) -> CsvError {
        CsvError::Unsupported {
            row: self.number,
            cell: self.cell,
            text: shortened(text),
            reason,
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}
