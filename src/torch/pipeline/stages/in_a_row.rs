//! Consecutive steps without barriers, as the engine runs them.

use std::sync::Arc;

use super::{Stages, Unfinished};
use crate::error::Error;
use crate::streams::InTransit;
use crate::{Row, TorchError, Values};
use gpipe_engine::{Program, StepOutcome};

impl Stages {
    /// Makes every stage save its state. *Returns* the bytes of the copies.
    pub(in crate::pipeline) fn enter_row(&mut self, row: &Arc<Row>) -> Result<u64, Error> {
        let row = Arc::clone(row);
        let bytes = self.on_each(move |_, stage| stage.enter_row(&row))?;
        Ok(bytes.into_iter().sum())
    }

    /// Runs the program of all steps; none of them counts yet.
    pub(in crate::pipeline) fn step_in_row(
        &mut self,
        program: &Arc<Program>,
        row: &Row,
        columns: Vec<Vec<Values>>,
    ) -> Result<StepOutcome<InTransit>, Error> {
        let in_transit = |values| Ok::<_, TorchError>(InTransit::from(values));
        let entries = self.entries(program, columns, in_transit)?;
        let first = row.steps.first().map(|first| Arc::clone(&first.settings));
        let first = first.ok_or_else(|| TorchError::new("no steps in a row"))?;
        Ok(self.engine.step(program, first, entries)?)
    }

    /// Makes the steps count.
    pub(in crate::pipeline) fn leave_row(&mut self) -> Result<(), Error> {
        self.on_each(|_, stage| {
            stage.leave_row();
            Ok(())
        })?;
        Ok(())
    }

    /// Undoes the steps: all stages return to their saved state, now or, after an error, before
    /// anything else.
    pub(in crate::pipeline) fn undo_row(&mut self) -> Result<(), Error> {
        self.unfinished = None;
        let undone = self.on_each(|_, stage| stage.undo_row());
        undone
            .map(drop)
            .inspect_err(|_| self.unfinished = Some(Unfinished::Row))
    }

    /// Does the same when the engine can be used again.
    pub(in crate::pipeline) fn undo_row_later(&mut self) {
        self.unfinished = Some(Unfinished::Row);
    }
}
