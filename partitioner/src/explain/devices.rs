//! Where each device's time went.

use super::replays::Replays;
use crate::ids::DeviceId;
use crate::simulate::Arrivals;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;

/// A device's time from the start of the measured step to its end:
/// `busy + waiting + link + overhead` is the measured makespan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// The device.
    pub device: DeviceId,
    /// How long it worked.
    pub busy: Micros,
    /// How long it had nothing to do: what it needed was not made yet, or its
    /// part of the step was done.
    pub waiting: Micros,
    /// How long it had nothing to do because what it needed was on its way.
    pub link: Micros,
    /// How long it did not start what it could have started, being free and with
    /// everything there.
    pub overhead: Micros,
    /// How long it was predicted to work.
    pub predicted_busy: Micros,
    /// How long it was predicted not to work.
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

/// `ready` says when the span's inputs were made, and when they were there.
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
        // Every point lies in the gap between the last end and this start.
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
