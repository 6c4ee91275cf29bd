//! Tasks of a device's list.

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
}
