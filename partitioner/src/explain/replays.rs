//! Replays of the schedule, each with one more measured quantity.

use super::durations::Durations;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::StageId;
use crate::schedule::ActionKind;
use crate::simulate::{Simulation, replay};
use crate::units::Micros;

/// Inputs of the replays: schedule, predicted costs, and measured transfers.
#[derive(Debug)]
pub(super) struct Replays<'a> {
    pub(super) schedule: &'a CheckedSchedule,
    /// The schedule without overlapped pairs, if it has any.
    pub(super) apart: Option<CheckedSchedule>,
    pub(super) costs: &'a Costs,
    /// The costs with the measured transfers.
    pub(super) transfers: &'a Costs,
}

/// The step's length in each replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Makespans {
    /// As predicted.
    pub(super) predicted: Micros,
    /// With the measured times of all actions, but no warm-up.
    pub(super) warm: Micros,
    /// With all measured times.
    pub(super) cold: Micros,
    /// And overlapped pairs one after the other.
    pub(super) apart: Micros,
    /// And with the measured transfers.
    pub(super) transferred: Micros,
    /// As measured.
    pub(super) measured: Micros,
}

impl<'a> Replays<'a> {
    pub(super) fn new(prediction: &'a Simulation, transfers: &'a Costs) -> Self {
        let schedule = prediction.schedule();
        Self {
            schedule,
            apart: apart(schedule),
            costs: prediction.costs(),
            transfers,
        }
    }

    /// The schedule as an engine runs it: one action after the other.
    pub(super) fn as_run(&self) -> &CheckedSchedule {
        self.apart.as_ref().unwrap_or(self.schedule)
    }

    pub(super) fn makespans(
        &self,
        cold: &Durations,
        warm: &Durations,
        predicted: Micros,
        measured: Micros,
    ) -> Makespans {
        let run = |schedule, costs, durations: &Durations| {
            replay(schedule, costs, |action| durations.of(action)).makespan()
        };
        Makespans {
            predicted,
            warm: run(self.schedule, self.costs, warm),
            cold: run(self.schedule, self.costs, cold),
            apart: run(self.as_run(), self.costs, cold),
            transferred: run(self.as_run(), self.transfers, cold),
            measured,
        }
    }

    /// Returns the step's length if only the actions of this stage and kind take their `durations`,
    /// and all others their predicted times.
    pub(super) fn with_stage(
        &self,
        stage: StageId,
        kind: ActionKind,
        durations: &Durations,
    ) -> Micros {
        let replayed = replay(self.schedule, self.costs, |action| {
            if (action.stage, action.kind) == (stage, kind) {
                durations.of(action)
            } else {
                self.costs.stage(action.stage).of(action.kind)
            }
        });
        replayed.makespan()
    }
}

/// Returns a schedule without overlapped pairs, if it has any; a pair only ever adds waits, so the
/// result is legal, too.
fn apart(schedule: &CheckedSchedule) -> Option<CheckedSchedule> {
    let plan = schedule.schedule();
    let pairs = plan
        .iter()
        .any(|(device, _)| !plan.pairs(device).is_empty());
    pairs.then(|| plan.clone().with_pairs(Vec::new()).check().ok())?
}
