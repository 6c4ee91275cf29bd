//! Duration of each action, and the part of it that is warm-up.

use super::ExplainError;
use crate::check::CheckedSchedule;
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, ActionKind, Schedule};
use crate::timeline::{Timeline, median};
use crate::units::Micros;

/// A first action counts as warm-up from this multiple of the median on: a few per cent above the
/// median are normal.
const WARM: f64 = 1.1;

/// Fewer actions give no median to compare a slow first one with.
const FEW: usize = 3;

/// A time for each action of a schedule.
#[derive(Clone, Debug)]
pub(super) struct Durations {
    micro_batches: usize,
    times: Vec<Micros>,
}

impl Durations {
    fn cell(&self, action: Action) -> usize {
        let row = action.stage.index() * ActionKind::ALL.len() + action.kind as usize;
        row * self.micro_batches + action.micro.index()
    }

    pub(super) fn of(&self, action: Action) -> Micros {
        self.times[self.cell(action)]
    }

    /// Returns the durations of a run.
    ///
    /// # Errors
    /// The run is not one of the schedule.
    pub(super) fn measured(
        schedule: &CheckedSchedule,
        timeline: &Timeline,
    ) -> Result<Self, ExplainError> {
        let plan = schedule.schedule();
        let cells = plan.stages() * plan.micro_batches();
        let mut durations = Self {
            micro_batches: plan.micro_batches(),
            times: vec![Micros::ZERO; cells * ActionKind::ALL.len()],
        };
        let mut due = due(plan, &durations);
        for span in timeline.spans() {
            let (action, device) = (span.action, span.device);
            let in_range =
                action.stage.index() < plan.stages() && action.micro.index() < plan.micro_batches();
            let cell = if in_range { durations.cell(action) } else { 0 };
            match due[cell] {
                Due::On(owner) if in_range && owner == device => due[cell] = Due::Done,
                Due::Done if in_range => return Err(ExplainError::Twice { action }),
                _ => {
                    let schedule = plan.name().to_owned();
                    return Err(ExplainError::NotScheduled {
                        action,
                        device,
                        schedule,
                    });
                }
            }
            durations.times[cell] = span.duration();
        }
        match missing(plan, &durations, &due) {
            Some(error) => Err(error),
            None => Ok(durations),
        }
    }

    /// Same without warm-up: the first actions of a stage and kind get the median duration, as long
    /// as they are clearly slower than it and none is slower than the one before.
    pub(super) fn warm(&self, schedule: &Schedule) -> Self {
        let mut warm = self.clone();
        for (stage, kind, actions) in by_stage_and_kind(schedule) {
            let times: Vec<Micros> = actions.iter().map(|&action| self.of(action)).collect();
            if times.len() < FEW {
                continue;
            }
            let usual = median(times).unwrap_or_default();
            let mut before = Micros::saturating(f64::MAX);
            let cold = |action: &&Action| {
                let time = self.of(**action);
                let warming = time > usual * WARM && time <= before;
                before = time;
                warming
            };
            for &action in actions.iter().take_while(cold) {
                debug_assert_eq!((action.stage, action.kind), (stage, kind));
                let cell = warm.cell(action);
                warm.times[cell] = usual;
            }
        }
        warm
    }
}

/// State of an action in a measured run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Never,
    On(DeviceId),
    Done,
}

fn due(plan: &Schedule, durations: &Durations) -> Vec<Due> {
    let mut due = vec![Due::Never; durations.times.len()];
    for (device, actions) in plan.iter() {
        for &action in actions {
            due[durations.cell(action)] = Due::On(device);
        }
    }
    due
}

fn missing(plan: &Schedule, durations: &Durations, due: &[Due]) -> Option<ExplainError> {
    let all = plan
        .iter()
        .flat_map(|(device, actions)| actions.iter().map(move |&action| (device, action)));
    let (device, action) = all
        .into_iter()
        .find(|&(_, action)| due[durations.cell(action)] != Due::Done)?;
    let schedule = plan.name().to_owned();
    Some(ExplainError::NotMeasured {
        action,
        device,
        schedule,
    })
}

/// Returns the actions of each stage and kind, in the order in which they run.
pub(super) fn by_stage_and_kind(schedule: &Schedule) -> Vec<(StageId, ActionKind, Vec<Action>)> {
    let kinds = ActionKind::ALL.len();
    let mut groups: Vec<Vec<Action>> = vec![Vec::new(); schedule.stages() * kinds];
    for (_, actions) in schedule.iter() {
        for &action in actions {
            groups[action.stage.index() * kinds + action.kind as usize].push(action);
        }
    }
    groups
        .into_iter()
        .filter_map(|actions| {
            let first = *actions.first()?;
            Some((first.stage, first.kind, actions))
        })
        .collect()
}
