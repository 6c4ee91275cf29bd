//! Tasks of a device's list.

use super::failure::Phase;
use gpipe_partitioner::{Action, MicroId, StageId};

/// One entry of a device's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// An action of the schedule; micro-batches are numbered through all replicas.
    Action(Action),
    /// A call of [`Stage::exchange`](super::Stage::exchange).
    Exchange { stage: StageId, round: usize },
}

impl Task {
    pub(super) fn stage(self) -> StageId {
        match self {
            Self::Action(action) => action.stage,
            Self::Exchange { stage, .. } => stage,
        }
    }

    pub(super) fn micro(self) -> Option<MicroId> {
        self.action().map(|action| action.micro)
    }

    pub(super) fn action(self) -> Option<Action> {
        match self {
            Self::Action(action) => Some(action),
            Self::Exchange { .. } => None,
        }
    }

    /// Returns the phase that a failure of this task is in.
    pub(super) fn phase(self) -> Phase {
        match self {
            Self::Action(action) => Phase::Action(action.kind),
            Self::Exchange { round, .. } => Phase::Exchange(round),
        }
    }

    /// Returns the phase of a failure to send this task's outputs.
    pub(super) fn sending(self) -> Phase {
        match self {
            Self::Action(action) => Phase::Send(action.kind),
            Self::Exchange { round, .. } => Phase::SendExchange(round),
        }
    }
}
