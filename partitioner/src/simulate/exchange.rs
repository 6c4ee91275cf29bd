//! Exchange of gradients between replicas, once per stage and step.
//!
//! A stage's exchange begins when its last backward (B or W) has ended on all replicas, which run
//! simultaneously. It uses the links while the device goes on with actions of other stages; a link
//! carries one exchange at a time, in the order of readiness.

use std::collections::HashMap;

use super::ports::Ports;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::{DeviceId, StageId};
use crate::schedule::ActionKind;
use crate::timeline::{Exchange, Span};
use crate::units::Micros;

/// Returns the exchanges of a step with these actions; `ports` has carried all values.
pub(super) fn exchanges(
    schedule: &CheckedSchedule,
    costs: &Costs,
    spans: &[Span],
    mut ports: Option<Ports<'_>>,
) -> Vec<Exchange> {
    if !costs.has_exchange() {
        return Vec::new();
    }
    // Time at which each device's link can take the next exchange.
    let mut links: HashMap<DeviceId, Micros> = HashMap::new();
    let mut exchange = |(ready, stage): (Micros, StageId)| {
        let (device, times) = (schedule.device_of(stage), costs.exchange(stage));
        let (start, passed) = match &mut ports {
            Some(ports) if ports.spread(device) => ports.exchange(device, ready, times.occupancy),
            _ => {
                let free = links.entry(device).or_default();
                let start = ready.max(*free);
                *free = start + times.occupancy;
                (start, *free)
            }
        };
        Exchange {
            device,
            stage,
            start,
            end: passed + times.latency,
        }
    };
    ready(costs, spans).into_iter().map(&mut exchange).collect()
}

/// Returns when the gradients of each stage that exchanges any are complete, the first one first.
fn ready(costs: &Costs, spans: &[Span]) -> Vec<(Micros, StageId)> {
    let mut last: HashMap<StageId, Micros> = HashMap::new();
    for span in spans {
        let adds = matches!(
            span.action.kind,
            ActionKind::Backward | ActionKind::BackwardWeight
        );
        let times = costs.exchange(span.action.stage);
        if adds && times.occupancy + times.latency > Micros::ZERO {
            let end = last.entry(span.action.stage).or_default();
            *end = span.end.max(*end);
        }
    }
    let mut ready: Vec<_> = last.into_iter().map(|(stage, end)| (end, stage)).collect();
    ready.sort_unstable();
    ready
}
