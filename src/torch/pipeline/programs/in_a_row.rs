//! Programs of consecutive training steps without barriers between them.

use std::sync::Arc;

use gpipe_partitioner::{CheckedSchedule, ScheduleKind, auto_in_a_row};

use super::{Maker, Programs, Source};
use crate::error::Error;
use crate::pipeline::wiring::Purpose;
use gpipe_engine::Program;

/// The program of one step, and that of several in sequence.
#[derive(Debug, Clone)]
pub(in crate::pipeline) struct InARow {
    steps: usize,
    pub(in crate::pipeline) step: Arc<Program>,
    pub(in crate::pipeline) all: Arc<Program>,
}

impl Programs {
    /// Returns whether a skip goes from one stage to another.
    pub(in crate::pipeline) fn has_portals(&self) -> bool {
        self.wiring.has_portals()
    }

    /// Returns the program of several steps of one replica. A computed schedule differs from that
    /// of a step with a barrier.
    pub(in crate::pipeline) fn in_a_row(
        &mut self,
        micro_batches: usize,
        steps: usize,
    ) -> Result<InARow, Error> {
        let same = |own: &&InARow| own.steps == steps && own.step.micro_batches() == micro_batches;
        if let Some(own) = self.row.as_ref().filter(same) {
            return Ok(own.clone());
        }
        let purpose = Purpose::Train {
            input_gradient: false,
        };
        let step = match self.maker.source {
            Source::Kind(ScheduleKind::Auto) => {
                let schedule = self.maker.computed_in_a_row(micro_batches, steps)?;
                let topology = self.wiring.topology(purpose)?;
                Arc::new(Program::new(schedule, &topology)?)
            }
            _ => self.get(purpose, micro_batches)?,
        };
        let all = Arc::new(step.in_a_row(steps)?);
        let own = InARow { steps, step, all };
        self.row = Some(own.clone());
        Ok(own)
    }
}

impl Maker {
    fn computed_in_a_row(
        &self,
        micro_batches: usize,
        steps: usize,
    ) -> Result<CheckedSchedule, Error> {
        let (shape, costs, placement) = self.to_compute(micro_batches);
        let found = auto_in_a_row(shape, &costs, &[], placement, steps)?;
        self.with_recomputes(found.schedule, 0..micro_batches, micro_batches)
    }
}
