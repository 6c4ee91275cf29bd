//! Times of each stage, by kind of action.

use super::durations::{Durations, by_stage_and_kind};
use super::replays::Replays;
use super::{Delta, Makespans};
use crate::ids::{MicroId, StageId};
use crate::schedule::{Action, ActionKind};
use crate::timeline::median;
use crate::units::Micros;
use std::cmp::Reverse;

/// Most stages and kinds whose effect on the step is computed.
const LOOKED_AT: usize = 48;

/// One kind of work of one stage, as predicted and as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRow {
    /// The stage.
    pub stage: StageId,
    /// The kind of action.
    pub kind: ActionKind,
    /// Number of actions.
    pub count: usize,
    /// Predicted time of each action.
    pub predicted: Micros,
    /// Median of the measured times.
    pub median: Micros,
    /// Excess of all measured times together over the predicted ones, without warm-up.
    pub extra: Delta,
    /// Part of the measured time that was warm-up.
    pub warm_up: Delta,
    /// Number of warm-up actions: the first ones.
    pub warming: usize,
    /// The slowest action, without warm-up, and its time.
    pub slowest: (MicroId, Micros),
    /// Difference of the step from its prediction if only these actions differed; computed for the
    /// 48 with the most excess time.
    pub effect: Option<Delta>,
}

impl StageRow {
    /// Mean measured time of an action, without warm-up.
    pub fn mean(&self) -> Micros {
        let predicted = self.predicted.get() * self.count as f64;
        Micros::saturating((predicted + self.extra.micros()) / self.count as f64)
    }
}

pub(super) fn rows(
    replays: &Replays<'_>,
    measured: &Durations,
    warm: &Durations,
    makespans: &Makespans,
) -> Vec<StageRow> {
    let groups = by_stage_and_kind(replays.schedule.schedule());
    let mut rows: Vec<StageRow> = groups
        .iter()
        .filter_map(|(stage, kind, actions)| {
            let predicted = replays.costs.stage(*stage).of(*kind);
            row(actions, predicted, measured, warm)
        })
        .collect();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| (Reverse(rows[at].extra.size()), at));
    for at in order.into_iter().take(LOOKED_AT) {
        let StageRow { stage, kind, .. } = rows[at];
        let alone = replays.with_stage(stage, kind, warm);
        rows[at].effect = Some(Delta::between(makespans.predicted, alone));
    }
    rows
}

/// Returns the row of these actions, all of one stage and kind; none if there are none.
fn row(
    actions: &[Action],
    predicted: Micros,
    measured: &Durations,
    warm: &Durations,
) -> Option<StageRow> {
    let first = actions.first()?;
    let took = |action: &Action| Delta::between(predicted, warm.of(*action));
    let warming = |action: &Action| Delta::between(warm.of(*action), measured.of(*action));
    let slowest = actions.iter().max_by_key(|action| warm.of(**action))?;
    Some(StageRow {
        stage: first.stage,
        kind: first.kind,
        count: actions.len(),
        predicted,
        median: median(actions.iter().map(|&action| measured.of(action)).collect())?,
        extra: actions.iter().map(took).sum(),
        warm_up: actions.iter().map(warming).sum(),
        warming: actions
            .iter()
            .filter(|action| warming(action) != Delta::ZERO)
            .count(),
        slowest: (slowest.micro, warm.of(*slowest)),
        effect: None,
    })
}
