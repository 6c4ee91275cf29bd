//! Times of each device's actions: predicted by the simulator or measured by the engine.

use crate::cost::{Costs, StageTimes};
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, ActionKind};
use crate::units::Micros;

/// One action, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The device that runs the action.
    pub device: DeviceId,
    /// The action.
    pub action: Action,
    /// Start of the action.
    pub start: Micros,
    /// End of the action.
    pub end: Micros,
}

impl Span {
    /// Duration of the action.
    pub fn duration(&self) -> Micros {
        self.end - self.start
    }
}

/// Exchange of a stage's gradients between the replicas of its device, concurrent with the device's
/// actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "all-reduce")]
pub struct Exchange {
    /// The device.
    pub device: DeviceId,
    /// The stage.
    pub stage: StageId,
    /// Time at which the first gradients leave.
    pub start: Micros,
    /// Time at which all replicas have the sums.
    pub end: Micros,
}

/// All spans of one step, by device and then by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    devices: usize,
    spans: Vec<Span>,
    exchanges: Vec<Exchange>,
    makespan: Micros,
}

impl Timeline {
    /// Creates a timeline of these spans, in any order, shifted so that the first start is 0. A
    /// span that ends before it starts counts as empty.
    pub fn new(devices: usize, spans: Vec<Span>) -> Self {
        Self::with_exchanges(devices, spans, Vec::new())
    }

    /// Same as `new`, with exchanges between replicas: the step ends when all of them are over.
    pub fn with_exchanges(
        devices: usize,
        mut spans: Vec<Span>,
        mut exchanges: Vec<Exchange>,
    ) -> Self {
        let origin = spans
            .iter()
            .map(|span| span.start)
            .min()
            .unwrap_or_default();
        for span in &mut spans {
            span.start = span.start - origin;
            span.end = (span.end - origin).max(span.start);
        }
        for exchange in &mut exchanges {
            exchange.start = exchange.start - origin;
            exchange.end = (exchange.end - origin).max(exchange.start);
        }
        let ends = spans.iter().map(|span| span.end);
        let makespan = ends.chain(exchanges.iter().map(|own| own.end)).max();
        let key = |span: &Span| (span.device, span.start, span.end);
        if !spans.is_sorted_by_key(key) {
            spans.sort_by_key(key);
        }
        Self {
            devices: spans
                .last()
                .map_or(0, |span| span.device.index() + 1)
                .max(devices),
            makespan: makespan.unwrap_or_default(),
            spans,
            exchanges,
        }
    }

    /// Exchanges of gradients between replicas, in the order in which they become ready; none for
    /// one replica.
    pub fn exchanges(&self) -> &[Exchange] {
        &self.exchanges
    }

    /// The exchanges of the stages of `device`.
    pub(crate) fn exchanges_on(&self, device: DeviceId) -> impl Iterator<Item = &Exchange> {
        let all = self.exchanges.iter();
        all.filter(move |own| own.device == device)
    }

    /// Time from the end of the last action to the end of the step: exchanges only.
    pub fn exposed(&self) -> Micros {
        let ends = self.spans.iter().map(|span| span.end);
        self.makespan - ends.max().unwrap_or_default()
    }

    /// All spans, by device and then by start.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The spans of `device`, by start.
    pub fn spans_on(&self, device: DeviceId) -> &[Span] {
        let from = self.spans.partition_point(|span| span.device < device);
        let to = self.spans.partition_point(|span| span.device <= device);
        &self.spans[from..to]
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// Time from the first start to the last end over all devices, including exchanges.
    #[doc(alias = "step time")]
    pub fn makespan(&self) -> Micros {
        self.makespan
    }

    /// Busy time of `device`.
    pub fn busy(&self, device: DeviceId) -> Micros {
        self.spans_on(device).iter().map(Span::duration).sum()
    }

    /// Idle time of `device`, between the timeline's start and end.
    #[doc(alias = "bubble")]
    pub fn idle(&self, device: DeviceId) -> Micros {
        self.makespan - self.busy(device)
    }

    /// Idle time of `device` between its own first start and its own last end.
    pub fn idle_within(&self, device: DeviceId) -> Micros {
        let spans = self.spans_on(device);
        let start = spans.first().map_or(Micros::ZERO, |span| span.start);
        let end = spans.iter().map(|span| span.end).max().unwrap_or_default();
        end - start - self.busy(device)
    }

    /// Idle share of all devices' time, 0 to 1; 0 for an empty timeline.
    #[doc(alias = "bubble")]
    #[doc(alias = "bubble ratio")]
    #[doc(alias = "idle")]
    pub fn bubble_fraction(&self) -> f64 {
        let available = self.makespan.get() * self.devices as f64;
        if available == 0.0 {
            return 0.0;
        }
        let busy: Micros = self.spans.iter().map(Span::duration).sum();
        (1.0 - busy.get() / available).max(0.0)
    }

    /// Idle share of all devices' time in `steps` steps in a row
    /// ([`Schedule::in_a_row`](crate::Schedule::in_a_row)), 0 to 1, from each device's start of the
    /// second step to its start of the last one. So the pipeline's filling and draining is left
    /// out. None for fewer than three steps, and if devices do not have equally many actions in
    /// each.
    pub fn steady_bubble(&self, steps: usize) -> Option<f64> {
        let (mut busy, mut available) = (0.0, 0.0);
        for device in (0..self.devices).map(DeviceId) {
            let spans = self.spans_on(device);
            if steps < 3 || !spans.len().is_multiple_of(steps) {
                return None;
            }
            let each = spans.len() / steps;
            let steady = &spans[each..spans.len() - each];
            let (Some(first), Some(next)) = (steady.first(), spans.get(spans.len() - each)) else {
                continue;
            };
            busy += steady.iter().map(Span::duration).sum::<Micros>().get();
            available += (next.start - first.start).get();
        }
        (available > 0.0).then(|| (1.0 - busy / available).max(0.0))
    }

    /// Returns the median duration of the actions of `kind` of `stage` (of an even number the mean
    /// of the middle two); none if there are none.
    ///
    /// # Complexity
    /// Linear in the number of spans; for all stages at once see
    /// [`Timeline::stage_costs`].
    pub fn median(&self, stage: StageId, kind: ActionKind) -> Option<Micros> {
        let wanted = |span: &&Span| span.action.stage == stage && span.action.kind == kind;
        median(
            self.spans
                .iter()
                .filter(wanted)
                .map(Span::duration)
                .collect(),
        )
    }

    /// Returns the medians per stage and kind, as costs for predictions of a measured run. Kinds
    /// that did not occur take no time, except that a joint backward is the sum of its halves if
    /// only these were measured, halves are half of it if only it was, and a recompute takes as
    /// long as a forward. Transfers take no time.
    pub fn stage_costs(&self, stages: usize) -> Costs {
        let mut durations: Vec<[Vec<Micros>; ActionKind::ALL.len()]> = Vec::new();
        durations.resize_with(stages, Default::default);
        for span in &self.spans {
            if let Some(kinds) = durations.get_mut(span.action.stage.index()) {
                kinds[span.action.kind as usize].push(span.duration());
            }
        }
        Costs::new(
            durations
                .into_iter()
                .map(|kinds| times(kinds.map(median)))
                .collect(),
        )
    }
}

/// Fills in the kinds that were not measured.
fn times(medians: [Option<Micros>; ActionKind::ALL.len()]) -> StageTimes {
    let of = |kind: ActionKind| medians[kind as usize];
    let joint = of(ActionKind::Backward);
    let half = joint.unwrap_or_default() * 0.5;
    let forward = of(ActionKind::Forward).unwrap_or_default();
    let input = of(ActionKind::BackwardInput).unwrap_or(half);
    let weight = of(ActionKind::BackwardWeight).unwrap_or(half);
    StageTimes {
        forward,
        backward: joint.unwrap_or(input + weight),
        input,
        weight,
        recompute: of(ActionKind::Recompute).unwrap_or(forward),
    }
}

/// Returns the median, of an even number the mean of the middle two; none if empty.
pub(crate) fn median(mut times: Vec<Micros>) -> Option<Micros> {
    times.sort_unstable();
    let upper = *times.get(times.len() / 2)?;
    let lower = times[(times.len() - 1) / 2];
    Some(lower + (upper - lower) * 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(device: usize, action: &str, start: f64, end: f64) -> Span {
        Span {
            device: DeviceId(device),
            action: action.parse().unwrap(),
            start: Micros::new(start).unwrap(),
            end: Micros::new(end).unwrap(),
        }
    }

    fn micros(value: f64) -> Micros {
        Micros::new(value).unwrap()
    }

    fn two_devices() -> Timeline {
        let spans = vec![
            span(1, "1F0", 12.0, 14.0),
            span(0, "0B0", 17.0, 20.0),
            span(1, "1B0", 14.0, 17.0),
            span(0, "0F0", 10.0, 12.0),
        ];
        Timeline::new(2, spans)
    }

    #[test]
    fn it_starts_at_zero_and_is_sorted() {
        let timeline = two_devices();
        let names: Vec<_> = timeline
            .spans()
            .iter()
            .map(|s| s.action.to_string())
            .collect();
        assert_eq!(names, ["0F0", "0B0", "1F0", "1B0"]);
        assert_eq!(timeline.spans()[0].start, Micros::ZERO);
        assert_eq!(timeline.makespan(), micros(10.0));
    }

    #[test]
    fn busy_and_idle_add_up() {
        let timeline = two_devices();
        assert_eq!(timeline.busy(DeviceId(0)), micros(5.0));
        assert_eq!(timeline.idle(DeviceId(0)), micros(5.0));
        assert_eq!(timeline.idle_within(DeviceId(0)), micros(5.0));
        assert_eq!(timeline.idle_within(DeviceId(1)), Micros::ZERO);
        assert_eq!(timeline.bubble_fraction(), 0.5);
        assert_eq!(timeline.busy(DeviceId(9)), Micros::ZERO);
    }

    #[test]
    fn an_empty_timeline_is_harmless() {
        let timeline = Timeline::new(3, vec![]);
        assert_eq!(timeline.makespan(), Micros::ZERO);
        assert_eq!(timeline.bubble_fraction(), 0.0);
        assert_eq!(timeline.idle_within(DeviceId(0)), Micros::ZERO);
        assert_eq!(timeline.median(StageId(0), ActionKind::Forward), None);
    }

    #[test]
    fn medians_become_costs() {
        let spans = (0..4).map(|i| {
            span(
                0,
                &format!("0F{i}"),
                f64::from(10 * i),
                f64::from(11 * i + 1),
            )
        });
        let timeline = Timeline::new(1, spans.chain([span(0, "0B0", 50.0, 54.0)]).collect());
        // Durations 1, 2, 3, 4.
        assert_eq!(
            timeline.median(StageId(0), ActionKind::Forward),
            Some(micros(2.5))
        );
        let costs = timeline.stage_costs(2).stage(StageId(0));
        assert_eq!(costs.forward, micros(2.5));
        assert_eq!(
            (costs.backward, costs.input, costs.weight),
            (micros(4.0), micros(2.0), micros(2.0))
        );
    }
}
