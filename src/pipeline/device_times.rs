//! When actions ran on devices that have clocks of their own.
//!
//! The engine's log says when the host put an action into a device's stream. Where the
//! device keeps the time of events, its own say when the action ran. All of one
//! accelerator are counted from the first moment at which a stage of it began the step;
//! that moment is put where the host was then. It is exact where the accelerator was
//! idle then, as after a step whose loss has been read.

use std::time::{Duration, Instant};

use gpipe_partitioner::{DeviceId, Span, Timeline};

use super::stages::Stepped;
use crate::engine::Event as HostEvent;
use crate::torch::TorchError;
use crate::torch::streams::{Layer, Left, Place};

/// A step by the devices' clocks.
#[derive(Debug)]
pub(super) struct DeviceTimes {
    pub(super) timeline: Timeline,
    /// The largest share of an accelerator's time in the step in which its host thread
    /// was busy.
    pub(super) host_share: f64,
}

/// Waits for the step's end; none where nobody keeps the time.
pub(super) fn device_times(
    layer: &Layer,
    places: &[Place],
    stepped: &Stepped,
) -> Result<Option<DeviceTimes>, TorchError> {
    if !layer.keeps_time() {
        return Ok(None);
    }
    let mut spans = Vec::new();
    let mut host_share: f64 = 0.0;
    for (number, (left, host)) in stepped.left.iter().zip(&stepped.outcome.events).enumerate() {
        let device = DeviceId(number);
        let Some((base, begun)) = base(places, &stepped.left, number) else {
            spans.extend(host.iter().map(|event| by_host(device, event)));
            continue;
        };
        if let Some(end) = &left.end {
            layer.finish(end)?;
        }
        let offset = begun.saturating_duration_since(stepped.epoch);
        let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
        for (action, begin, end) in &left.actions {
            let (begin, end) = (Layer::seconds(base, begin)?, Layer::seconds(base, end)?);
            (first, last) = (first.min(begin), last.max(end));
            let at = |seconds: f64| (offset + Duration::from_secs_f64(seconds.max(0.0))).into();
            spans.push(Span {
                device,
                action: *action,
                start: at(begin),
                end: at(end),
            });
        }
        let lasted = |event: &HostEvent| event.end.saturating_sub(event.start);
        let busy: Duration = host.iter().map(lasted).sum();
        if last > first {
            host_share = host_share.max(busy.as_secs_f64() / (last - first));
        }
    }
    Ok(Some(DeviceTimes {
        timeline: Timeline::new(places.len(), spans),
        host_share,
    }))
}

/// What the accelerator of a device is counted from, and when the host was there.
fn base<'a>(
    places: &[Place],
    left: &'a [Left],
    number: usize,
) -> Option<(&'a crate::torch::streams::Event, Instant)> {
    let same = |other: &usize| places[*other] == places[number];
    let begun = (0..places.len()).filter(same);
    begun
        .filter_map(|other| left[other].begin.as_ref())
        .min_by_key(|(_, begun)| *begun)
        .map(|(event, begun)| (event, *begun))
}

fn by_host(device: DeviceId, event: &HostEvent) -> Span {
    Span {
        device,
        action: event.action,
        start: event.start.into(),
        end: event.end.into(),
    }
}
