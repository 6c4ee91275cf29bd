//! Breakdown of each device's time.

use super::replays::Replays;
use crate::ids::DeviceId;
use crate::simulate::Arrivals;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;

/// Time of a device from the start of the measured step to its end: `busy + waiting + link +
/// overhead` is the measured makespan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// The device.
    pub device: DeviceId,
    /// Time in which it computed.
    pub busy: Micros,
    /// Idle time because inputs had not been made yet, or because the device's part of the step was
    /// done.
    pub waiting: Micros,
    /// Idle time because inputs were in transfer.
    pub link: Micros,
    /// Idle time although the device was free and all inputs had arrived.
    pub overhead: Micros,
    /// Predicted computing time.
    pub predicted_busy: Micros,
    /// Predicted idle time.
    pub predicted_idle: Micros,
}

pub(super) fn rows(
    replays: &Replays<'_>,
    measured: &Timeline,
    predicted: &Timeline,
) -> Vec<DeviceRow> {
    let schedule = replays.as_run();
    let mut made = Arrivals::at_once(schedule);
    let mut there = Arrivals::new(schedule, replays.transfers);
    for span in measured.spans() {
        made.send(span.device, span.action, span.end);
        there.send(span.device, span.action, span.end);
    }
    let devices = (0..measured.devices()).map(DeviceId);
    let row = |device| {
        let gaps = |span: &Span| (made.ready(span.action), there.ready(span.action));
        row(device, measured, predicted, gaps)
    };
    devices.map(row).collect()
}

/// `ready` returns when the span's inputs were made, and when they had arrived.
fn row(
    device: DeviceId,
    measured: &Timeline,
    predicted: &Timeline,
    ready: impl Fn(&Span) -> (Micros, Micros),
) -> DeviceRow {
    let mut row = DeviceRow {
        device,
        busy: measured.busy(device),
        waiting: Micros::ZERO,
        link: Micros::ZERO,
        overhead: Micros::ZERO,
        predicted_busy: predicted.busy(device),
        predicted_idle: predicted.idle(device),
    };
    let mut free = Micros::ZERO;
    for span in measured.spans_on(device) {
        // Clamps to the gap between the last end and this start.
        let within = |time: Micros| time.max(free).min(span.start.max(free));
        let (made, there) = ready(span);
        let (made, there) = (within(made), within(made.max(there)));
        row.waiting += made - free;
        row.link += there - made;
        row.overhead += span.start - there;
        free = free.max(span.end);
    }
    row.waiting += measured.makespan() - free;
    row
}
