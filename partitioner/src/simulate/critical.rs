//! The critical path of the makespan.

use crate::check::CheckedSchedule;
use crate::ids::StageId;
use crate::schedule::{Action, ActionKind};
use crate::timeline::{Span, Timeline};
use crate::units::Micros;

/// An action on the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CriticalStep {
    /// The action.
    pub span: Span,
    /// Time for which its input was in transfer (or waited for a busy link) before it, while its
    /// device was idle.
    pub transfer: Micros,
}

/// A chain of actions from time 0 to the end of the step, each of which starts as soon as the
/// previous one and its transfer permit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// The actions in order of time.
    pub steps: Vec<CriticalStep>,
    /// Time after the last of them in which replicas still exchange gradients.
    pub exchange: Micros,
}

impl CriticalPath {
    /// Returns the work of `stage` on the path.
    pub fn work(&self, stage: StageId) -> Micros {
        let of_stage = self
            .steps
            .iter()
            .filter(|step| step.span.action.stage == stage);
        of_stage.map(|step| step.span.duration()).sum()
    }

    /// Returns the time of transfers on the path.
    pub fn transfers(&self) -> Micros {
        self.steps.iter().map(|step| step.transfer).sum()
    }
}

pub(super) fn path(schedule: &CheckedSchedule, timeline: &Timeline) -> CriticalPath {
    let spans = timeline.spans();
    let sources = Sources::new(schedule, timeline);
    let last = last(timeline);
    let exchange = last.map_or(Micros::ZERO, |at| timeline.makespan() - spans[at].end);
    let mut steps = Vec::new();
    let mut here = last;
    // Going back, each step is earlier in its device's list or an input of this action: no span
    // occurs twice.
    while let Some(at) = here {
        let span = spans[at];
        let before = at
            .checked_sub(1)
            .filter(|&before| spans[before].device == span.device);
        here = if before.is_some_and(|before| spans[before].end >= span.start) {
            before
        } else {
            sources.latest(at).or(before)
        };
        let ready = here.map_or(Micros::ZERO, |before| spans[before].end);
        steps.push(CriticalStep {
            span,
            transfer: span.start - ready,
        });
    }
    steps.reverse();
    CriticalPath { steps, exchange }
}

/// Returns the action that ends last or, if an exchange ends after it, the action that made that
/// exchange's last gradients.
fn last(timeline: &Timeline) -> Option<usize> {
    let spans = timeline.spans();
    let latest = |all: &mut dyn Iterator<Item = usize>| {
        all.max_by_key(|&at| (spans[at].end, std::cmp::Reverse(at)))
    };
    let exchange = timeline.exchanges().iter().max_by_key(|own| own.end);
    let exposed = exchange.filter(|_| timeline.exposed() > Micros::ZERO);
    let gave = |at: &usize| {
        let kind = spans[*at].action.kind;
        let gives = matches!(kind, ActionKind::Backward | ActionKind::BackwardWeight);
        gives && exposed.is_some_and(|own| spans[*at].action.stage == own.stage)
    };
    let all = || 0..spans.len();
    latest(&mut all().filter(gave)).or_else(|| latest(&mut all()))
}

/// Finds the span that made the input of another one.
struct Sources<'a> {
    schedule: &'a CheckedSchedule,
    spans: &'a [Span],
    /// By stage and micro-batch: the span of the forward, and of the action that made the gradient.
    forward: Vec<usize>,
    gradient: Vec<usize>,
}

impl<'a> Sources<'a> {
    fn new(schedule: &'a CheckedSchedule, timeline: &'a Timeline) -> Self {
        let plan = schedule.schedule();
        let cells = plan.stages() * plan.micro_batches();
        let mut sources = Self {
            schedule,
            spans: timeline.spans(),
            forward: vec![usize::MAX; cells],
            gradient: vec![usize::MAX; cells],
        };
        for (at, span) in timeline.spans().iter().enumerate() {
            let cell = sources.cell(span.action.stage.index(), span.action);
            match span.action.kind {
                ActionKind::Forward => sources.forward[cell] = at,
                ActionKind::Backward | ActionKind::BackwardInput => sources.gradient[cell] = at,
                ActionKind::BackwardWeight | ActionKind::Recompute => {}
            }
        }
        sources
    }

    fn cell(&self, stage: usize, action: Action) -> usize {
        stage * self.schedule.schedule().micro_batches() + action.micro.index()
    }

    /// Returns the latest of the spans on other stages whose output the one at `at`, or its
    /// partner, waits for.
    fn latest(&self, at: usize) -> Option<usize> {
        let first = self.spans[..at].partition_point(|s| s.device < self.spans[at].device);
        let plan = self.schedule.schedule();
        let partner = plan.partner(self.spans[at].device, at - first);
        let actions = [Some(self.spans[at].action), partner];
        let sources = actions
            .into_iter()
            .flatten()
            .filter_map(|action| self.source(action));
        sources.max_by_key(|&source| self.spans[source].end)
    }

    fn source(&self, action: Action) -> Option<usize> {
        let stage = action.stage.index();
        match action.kind {
            ActionKind::Forward => Some(self.forward[self.cell(stage.checked_sub(1)?, action)]),
            ActionKind::Backward | ActionKind::BackwardInput => {
                let next = stage + 1;
                (next < self.schedule.schedule().stages())
                    .then(|| self.gradient[self.cell(next, action)])
            }
            ActionKind::BackwardWeight | ActionKind::Recompute => None,
        }
    }
}
