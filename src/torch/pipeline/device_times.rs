//! Times of actions on devices with clocks of their own.
//!
//! The engine's log says when the host submitted an action to a device's stream. If the device
//! records events with times, those say when the action ran. Such times are relative to another
//! event of the same device. So each accelerator has an *anchor*: an event whose completion time is
//! known on the host's clock. The first anchor is made, and waited for, when the pipeline is built;
//! after that, the beginning of each step whose times are read becomes the next anchor. So all
//! accelerators and the host share one time axis, whether or not the host runs ahead of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpipe_partitioner::{DeviceId, Span, Timeline};
use parking_lot::Mutex;

use super::host_wait::{TOLD_BEFORE, in_time};
use crate::TorchError;
use crate::streams::{Event, MemorySpace, TaskEvents, cuda};
use gpipe_engine::ActionEvent as HostEvent;

/// An event of an accelerator, and its completion time by the host's clock.
#[derive(Debug, Clone)]
struct Anchor {
    event: Event,
    at: Instant,
}

/// The newest anchor of each accelerator.
#[derive(Debug, Clone, Default)]
pub(super) struct Anchors(Arc<Mutex<BTreeMap<usize, Anchor>>>);

impl Anchors {
    /// Makes anchors for these accelerators now, and waits for them.
    pub(super) fn drop_in(
        &self,
        devices: &[usize],
        patience: Option<Duration>,
    ) -> Result<(), TorchError> {
        for device in devices {
            let shared = cuda::submit_guard(*device);
            let event = cuda::record(cuda::current(*device)?)?;
            drop(shared);
            in_time(&event, *device, patience, TOLD_BEFORE)?;
            cuda::finish(&event)?;
            let at = Instant::now();
            self.put(*device, Anchor { event, at });
        }
        Ok(())
    }

    /// Replaces an earlier anchor by a later one.
    fn put(&self, device: usize, new: Anchor) {
        let mut all = self.0.lock();
        let old = all.get(&device);
        if old.is_none_or(|old| old.at < new.at) {
            all.insert(device, new);
        }
    }

    fn now(&self) -> BTreeMap<usize, Anchor> {
        let all = self.0.lock();
        all.clone()
    }
}

/// Times of a step that may not be over.
#[derive(Debug)]
pub(super) struct Times {
    places: Vec<MemorySpace>,
    /// Events of each device.
    task_events: Vec<TaskEvents>,
    host: Vec<Vec<HostEvent>>,
    /// Start of the host's clock.
    epoch: Instant,
    /// Anchors from before the step.
    anchors: BTreeMap<usize, Anchor>,
    /// Receiver of the anchors made of this step's beginnings.
    next: Anchors,
    /// The calling thread's patience.
    patience: Option<Duration>,
}

/// A step timed by the devices' clocks.
#[derive(Debug)]
pub(super) struct DeviceTimes {
    pub(super) timeline: Timeline,
    /// The maximum over the devices of host time to submit the actions over device time to run
    /// them.
    pub(super) host_share: f64,
}

impl Times {
    pub(super) fn new(
        places: &[MemorySpace],
        task_events: Vec<TaskEvents>,
        host: Vec<Vec<HostEvent>>,
        epoch: Instant,
        (anchors, patience): (&Anchors, Option<Duration>),
    ) -> Self {
        Self {
            places: places.to_vec(),
            task_events,
            host,
            epoch,
            anchors: anchors.now(),
            next: anchors.clone(),
            patience,
        }
    }

    /// Returns whether [`Times::read`] would not wait.
    pub(super) fn are_ready(&self) -> bool {
        let ends = self
            .task_events
            .iter()
            .filter_map(|task_events| task_events.end.as_ref());
        // A device that failed has nothing to wait for.
        ends.into_iter()
            .all(|end| cuda::is_over(end).unwrap_or(true))
    }

    /// See [`super::host_wait::HostWait::in_time`].
    pub(super) fn in_time(&self) -> Result<(), TorchError> {
        let ends = self.places.iter().zip(&self.task_events);
        for (place, task_events) in ends {
            if let (MemorySpace::Accelerator(device), Some(end)) = (place, &task_events.end) {
                in_time(end, *device, self.patience, "the end of the step")?;
            }
        }
        Ok(())
    }

    /// Waits for the step's end and returns its times.
    pub(super) fn read(self) -> Result<DeviceTimes, TorchError> {
        let devices = self.places.len();
        let (spans, host_share) = self.read_spans()?;
        Ok(DeviceTimes {
            timeline: Timeline::new(devices, spans),
            host_share: host_share.unwrap_or_default(),
        })
    }

    /// Waits for the step's end and returns its spans, in seconds since the epoch; no share if no
    /// device is asynchronous.
    pub(super) fn read_spans(self) -> Result<(Vec<Span>, Option<f64>), TorchError> {
        for end in self
            .task_events
            .iter()
            .filter_map(|task_events| task_events.end.as_ref())
        {
            cuda::finish(end)?;
        }
        let mut spans = Vec::new();
        let mut shares: Vec<f64> = Vec::new();
        for (number, host) in self.host.iter().enumerate() {
            let Some((base, at)) = self.base(number)? else {
                spans.extend(host.iter().map(|event| by_host(DeviceId(number), event)));
                continue;
            };
            let own = self.by_device(number, &base, at)?;
            let took: f64 = own.iter().map(|(begin, end)| end - begin).sum();
            let actions = self.task_events[number].actions.iter();
            for ((action, _, _), (begin, end)) in actions.zip(own) {
                spans.push(Span {
                    device: DeviceId(number),
                    action: *action,
                    start: Duration::from_secs_f64(begin).into(),
                    end: Duration::from_secs_f64(end).into(),
                });
            }
            shares.extend(host_share(host, took));
        }
        Ok((spans, shares.into_iter().reduce(f64::max)))
    }

    /// Returns an event of the device's accelerator and its time, in seconds since (or before) the
    /// epoch; `None` for the host.
    fn base(&self, number: usize) -> Result<Option<(Event, f64)>, TorchError> {
        let MemorySpace::Accelerator(accelerator) = self.places[number] else {
            return Ok(None);
        };
        let same =
            (0..self.places.len()).filter(|other| self.places[*other] == self.places[number]);
        let begun = same.filter_map(|other| self.task_events[other].begin.as_ref());
        let Some((event, begun)) = begun.min_by_key(|(_, begun)| *begun) else {
            return Ok(None);
        };
        let at = match self.anchors.get(&accelerator) {
            Some(anchor) => after(anchor.at, cuda::seconds(&anchor.event, event)?),
            None => *begun,
        };
        let anchor = Anchor {
            event: event.clone(),
            at,
        };
        self.next.put(accelerator, anchor);
        Ok(Some((event.clone(), since(self.epoch, at))))
    }

    /// Returns begin and end of the device's actions, in seconds since the epoch.
    fn by_device(
        &self,
        number: usize,
        base: &Event,
        at: f64,
    ) -> Result<Vec<(f64, f64)>, TorchError> {
        let actions = self.task_events[number].actions.iter();
        actions
            .map(|(_, begin, end)| {
                let begin = at + cuda::seconds(base, begin)?;
                let end = at + cuda::seconds(base, end)?;
                // Clocks differ slightly, so a time may lie before the step.
                Ok((begin.max(0.0), end.max(0.0)))
            })
            .collect()
    }
}

/// Returns the host thread's time to submit a device's work over `device_seconds`. A device that
/// waits for the host inside its actions takes as long as the host: 1. (Between actions it may wait
/// for other stages, as the host does.)
fn host_share(host: &[HostEvent], device_seconds: f64) -> Option<f64> {
    let lasted = |event: &HostEvent| event.end.saturating_sub(event.start);
    let busy: Duration = host.iter().map(lasted).sum();
    (device_seconds > 0.0).then(|| busy.as_secs_f64() / device_seconds)
}

fn after(at: Instant, seconds: f64) -> Instant {
    let distance = Duration::from_secs_f64(seconds.abs());
    let moved = if seconds < 0.0 {
        at.checked_sub(distance)
    } else {
        at.checked_add(distance)
    };
    moved.unwrap_or(at)
}

/// Returns the seconds from `epoch` to `at`, negative if `at` is earlier.
fn since(epoch: Instant, at: Instant) -> f64 {
    match at.checked_duration_since(epoch) {
        Some(later) => later.as_secs_f64(),
        None => -epoch.duration_since(at).as_secs_f64(),
    }
}

pub(super) fn by_host(device: DeviceId, event: &HostEvent) -> Span {
    Span {
        device,
        action: event.action,
        start: event.start.into(),
        end: event.end.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpipe_partitioner::{Action, ActionKind, Bytes};

    #[test]
    fn moments_before_and_after_are_told_apart() {
        let epoch = Instant::now() + Duration::from_secs(10);
        for seconds in [-2.5, -0.001, 0.0, 0.25, 3.0] {
            let there = since(epoch, after(epoch, seconds));
            assert!((there - seconds).abs() < 1e-6, "{there} for {seconds}");
        }
    }

    #[test]
    fn the_hosts_share_is_of_the_devices_time() {
        let event = |start, end| HostEvent {
            action: Action::new(0, ActionKind::Forward, 0),
            start: Duration::from_millis(start),
            end: Duration::from_millis(end),
            bytes_in_flight: Bytes(0),
        };
        let host = [event(0, 10), event(30, 40)];
        assert_eq!(host_share(&host, 0.08), Some(0.25));
        assert_eq!(host_share(&host, 0.02), Some(1.0));
        assert_eq!(host_share(&host, 0.0), None);
        assert_eq!(host_share(&[], 1.0), Some(0.0));
    }
}
