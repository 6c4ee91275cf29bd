//! A checked schedule as CSV, with the communication that follows from it.

use super::CheckedSchedule;
use crate::ids::StageId;
use crate::schedule::{Action, ActionKind};

/// Content of the CSV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvFormat {
    /// Computation only (`compute_only` in PyTorch).
    Compute,
    /// With a send after each action that another device waits for, and a receive before each
    /// action that waits for another device (`compute_comms` in PyTorch).
    ComputeAndCommunication,
}

impl CheckedSchedule {
    /// Writes the schedule as CSV.
    pub fn to_csv(&self, format: CsvFormat) -> String {
        match format {
            CsvFormat::Compute => self.schedule().to_csv(),
            CsvFormat::ComputeAndCommunication => {
                self.schedule().write_csv(|row, action, before| {
                    row.extend(self.communication(action, before));
                })
            }
        }
    }

    /// Returns the receive before or the send after `action`, if its neighbour stage is on another
    /// device.
    fn communication(&self, action: Action, before: bool) -> Option<String> {
        let stage = action.stage.index();
        let (onward, letter) = match action.kind {
            ActionKind::Forward => (true, 'F'),
            ActionKind::Backward | ActionKind::BackwardInput => (false, 'B'),
            ActionKind::BackwardWeight | ActionKind::Recompute => return None,
        };
        // A forward sends to the next stage and receives from the previous one; a backward the
        // other way round.
        let other = if onward == before {
            stage.checked_sub(1)?
        } else {
            stage + 1
        };
        let exists = other < self.schedule().stages();
        if !exists || self.device_of(StageId(other)) == self.device_of(action.stage) {
            return None;
        }
        let verb = if before { "RECV" } else { "SEND" };
        Some(format!("{stage}{verb}_{letter}{}", action.micro))
    }
}
