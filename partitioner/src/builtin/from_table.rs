//! Generation of a checked schedule from a row of the table.

use super::lists::Lists;
use super::{ScheduleError, ScheduleKind, Shape};
use crate::check::CheckedSchedule;
use crate::schedule::{MAX_CELLS, MAX_STAGES, Schedule};

impl ScheduleKind {
    /// Generates the schedule; see [`ScheduleKind::generate`].
    pub(crate) fn list(self, shape: Shape) -> Result<CheckedSchedule, ScheduleError> {
        self.check_shape(shape)?;
        let lists = match self.generator() {
            Some(generator) => generator(shape),
            None => Err("costs: it is computed, not listed"),
        };
        let Lists { devices, pairs } = lists.map_err(|needs| self.unsupported(shape, needs))?;
        let schedule = Schedule::new(self.name(), shape.stages(), shape.micro_batches, devices);
        Ok(schedule.with_pairs(pairs).check()?)
    }

    /// Checks that a schedule of this size is possible.
    pub(crate) fn check_shape(self, shape: Shape) -> Result<(), ScheduleError> {
        if shape.devices == 0 || shape.chunks == 0 || shape.micro_batches == 0 {
            return Err(self.unsupported(shape, "at least one of each"));
        }
        let cells = shape.stages().checked_mul(shape.micro_batches);
        if shape.stages() > MAX_STAGES || cells.is_none_or(|cells| cells > MAX_CELLS) {
            let needs = "at most 65536 stages, and stages times micro-batches at most 4194304";
            return Err(self.unsupported(shape, needs));
        }
        Ok(())
    }

    fn unsupported(self, shape: Shape, needs: &'static str) -> ScheduleError {
        ScheduleError::Unsupported {
            kind: self,
            shape,
            needs,
        }
    }
}
