//! Parsers shared by several verbs: values of flags, and files.

use std::ops::Deref;

use tch::Device;

pub(super) use gpipe_decide::input::*;

/// Parses devices of this machine: see [`parse_devices`](gpipe_torch::parse_devices).
pub(super) fn devices(text: &str) -> Result<Vec<Device>, String> {
    gpipe_torch::parse_devices(text).map_err(|error| error.to_string())
}

/// A flag's list of devices.
#[derive(Clone, Debug)]
pub(super) struct DeviceList(Vec<Device>);

impl Deref for DeviceList {
    type Target = [Device];

    fn deref(&self) -> &[Device] {
        &self.0
    }
}

pub(super) fn device_list(text: &str) -> Result<DeviceList, String> {
    devices(text).map(DeviceList)
}

/// Parses a random seed.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    let rule = |_| format!("`{text}` is not a whole number from 0 to {}", u64::MAX);
    text.trim().parse().map_err(rule)
}
