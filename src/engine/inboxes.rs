//! Mailboxes that the workers of an engine read.

use super::mailbox::Mailbox;
use super::mesh::Mesh;
use super::message::Message;
use super::stage::Stage;
use gpipe_partitioner::DeviceId;

/// A mailbox per device of the engine.
pub(super) struct Inboxes<S: Stage> {
    /// The engine's devices, in increasing order.
    devices: Vec<DeviceId>,
    mesh: Mesh,
    /// By device of the mesh: its index in `devices`, unless it is in another process.
    indices: Vec<Option<usize>>,
    /// In the order of `devices`.
    mailboxes: Vec<Mailbox<Message<S>>>,
}

impl<S: Stage> Inboxes<S> {
    /// Creates the mailboxes of `devices` of a mesh.
    pub(super) fn new(devices: Vec<DeviceId>, mesh: Mesh) -> Self {
        let mut indices = vec![None; mesh.devices()];
        for (index, device) in devices.iter().enumerate() {
            if let Some(place) = indices.get_mut(device.index()) {
                *place = Some(index);
            }
        }
        Self {
            mesh,
            indices,
            mailboxes: devices.iter().map(|_| Mailbox::new()).collect(),
            devices,
        }
    }

    /// The engine's devices, in increasing order.
    pub(super) fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// All devices, including those of other processes.
    pub(super) fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// Returns the device's index among those here, unless it is in another process.
    pub(super) fn index(&self, device: DeviceId) -> Option<usize> {
        self.indices.get(device.index()).copied().flatten()
    }

    /// Returns the mailbox of the device, unless it is in another process.
    pub(super) fn of(&self, device: DeviceId) -> Option<&Mailbox<Message<S>>> {
        self.index(device).map(|index| &self.mailboxes[index])
    }

    /// Returns the mailbox of the device with this index.
    pub(super) fn at(&self, index: usize) -> &Mailbox<Message<S>> {
        &self.mailboxes[index]
    }

    /// In the order of the devices.
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
