//! What the workers of an engine read.

use super::mailbox::Mailbox;
use super::message::Message;
use super::stage::Stage;
use gpipe_partitioner::DeviceId;

/// A mailbox per device of the engine.
pub(super) struct Inboxes<S: Stage> {
    /// The engine's devices, in increasing order.
    devices: Vec<DeviceId>,
    /// By device of the pipeline: its index in `devices`, unless it is in another process.
    indices: Vec<Option<usize>>,
    /// By index.
    mailboxes: Vec<Mailbox<Message<S>>>,
}

impl<S: Stage> Inboxes<S> {
    /// For `devices` of a pipeline of so many.
    pub(super) fn new(devices: Vec<DeviceId>, all: usize) -> Self {
        let mut indices = vec![None; all];
        for (index, device) in devices.iter().enumerate() {
            if let Some(place) = indices.get_mut(device.index()) {
                *place = Some(index);
            }
        }
        Self {
            indices,
            mailboxes: devices.iter().map(|_| Mailbox::new()).collect(),
            devices,
        }
    }

    /// The engine's devices, in increasing order.
    pub(super) fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// Devices of the whole pipeline.
    pub(super) fn all_devices(&self) -> usize {
        self.indices.len()
    }

    /// The device's index among those here, unless it is in another process.
    pub(super) fn index(&self, device: DeviceId) -> Option<usize> {
        self.indices.get(device.index()).copied().flatten()
    }

    /// What the device's worker reads, unless it is in another process.
    pub(super) fn of(&self, device: DeviceId) -> Option<&Mailbox<Message<S>>> {
        self.index(device).map(|index| &self.mailboxes[index])
    }

    /// What the worker of the device with this index reads.
    pub(super) fn at(&self, index: usize) -> &Mailbox<Message<S>> {
        &self.mailboxes[index]
    }

    /// By index.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Mailbox<Message<S>>> {
        self.mailboxes.iter()
    }

    /// Tells every worker but that of `failed` to leave the step.
    pub(super) fn stop_all_but(&self, failed: Option<DeviceId>) {
        for (device, inbox) in self.devices.iter().zip(&self.mailboxes) {
            if Some(*device) != failed {
                inbox.post(Message::Stop);
            }
        }
    }
}
