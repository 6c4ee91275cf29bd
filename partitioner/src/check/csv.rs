//! A checked schedule as CSV, with the communication that follows from it.

use super::CheckedSchedule;
use crate::ids::StageId;
use crate::schedule::{Action, ActionKind};

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvFormat {
    /// Computation alone (`compute_only` in PyTorch).
    Compute,
    /// With a send after what another device waits for and a receive before what
    /// waits for another device (`compute_comms` in PyTorch).
    ComputeAndCommunication,
}

impl CheckedSchedule {
    /// The schedule as CSV.
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

    /// The receive before or the send after `action`, if its neighbour stage is on
    /// another device.
    fn communication(&self, action: Action, before: bool) -> Option<String> {
        let stage = action.stage.index();
        let (onward, letter) = match action.kind {
            ActionKind::Forward => (true, 'F'),
            ActionKind::Backward | ActionKind::BackwardInput => (false, 'B'),
            ActionKind::BackwardWeight | ActionKind::Recompute => return None,
        };
        // What a forward sends goes to the next stage, what it receives comes from
        // the stage before; a backward the other way round.
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
