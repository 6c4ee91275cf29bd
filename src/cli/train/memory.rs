//! What activations took in the last step, beside what the schedule has them take.

use std::fmt::Write as _;

use serde::Serialize;

use crate::MemoryReport;

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

/// A line for each device.
pub(super) fn text(report: Option<&MemoryReport>) -> String {
    let mut text = String::new();
    for (device, used) in report.iter().flat_map(|report| &report.devices).enumerate() {
        let title = if device == 0 { "activations" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{title:<15}dev {device}: {} held by micro-batches in flight, {} predicted; {} at the peak of an action",
            used.held, used.predicted, used.peak
        );
    }
    text
}
