//! What activations took in the last step, beside what the schedule has them take.

use serde::Serialize;

use crate::{MemoryReport, MemoryUse};

/// One device, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct DeviceMemory {
    /// At any time.
    peak: u64,
    /// Between two actions: what micro-batches in flight held.
    held: u64,
    /// What `held` is on paper.
    predicted: u64,
}

/// One entry a device.
pub(super) fn devices(report: &MemoryReport) -> Vec<DeviceMemory> {
    let devices = report.devices.iter();
    devices
        .map(|used| DeviceMemory {
            peak: used.peak.0,
            held: used.held.0,
            predicted: used.predicted.0,
        })
        .collect()
}

/// A line for each device, with its title.
pub(super) fn lines(report: Option<&MemoryReport>) -> Vec<(&'static str, String)> {
    let devices = report.iter().flat_map(|report| &report.devices);
    let line = |(device, used): (usize, &MemoryUse)| {
        let title = if device == 0 { "activations" } else { "" };
        let said = format!(
            "dev {device}: {} held by micro-batches in flight, {} predicted; {} at the peak of an \
             action",
            used.held, used.predicted, used.peak
        );
        (title, said)
    };
    devices.enumerate().map(line).collect()
}
