//! The mailboxes, and what else the threads of an engine share.

use super::mailbox::Mailbox;
use super::message::{Message, Reply, Report};
use super::sharing::Sharing;
use super::stage::Stage;
use super::turns::Turns;
use super::watchdog::Note;
use gpipe_partitioner::DeviceId;

/// The state that all threads of an engine share.
pub(super) struct Shared<S: Stage> {
    /// By device: what its worker reads.
    pub(super) inboxes: Vec<Mailbox<Message<S>>>,
    /// What the caller reads.
    pub(super) reports: Mailbox<Report<S::Value>>,
    /// By device: what its worker is doing.
    pub(super) notes: Vec<Note>,
    /// Where devices share too few cores for all of them.
    pub(super) turns: Option<Turns>,
}

impl<S: Stage> Shared<S> {
    pub(super) fn new(devices: usize, sharing: Option<&Sharing>) -> Self {
        let inboxes = (0..devices).map(|_| Mailbox::new()).collect();
        Self {
            inboxes,
            reports: Mailbox::new(),
            notes: (0..devices).map(|_| Note::default()).collect(),
            turns: sharing.map(|sharing| Turns::new(devices, sharing)),
        }
    }

    pub(super) fn inbox(&self, device: DeviceId) -> &Mailbox<Message<S>> {
        &self.inboxes[device.index()]
    }

    pub(super) fn report(&self, device: DeviceId, reply: Reply<S::Value>) {
        self.reports.post(Report { device, reply });
    }

    /// Tells every worker but `failed` to leave the step.
    pub(super) fn stop_all_but(&self, failed: DeviceId) {
        for (device, inbox) in self.inboxes.iter().enumerate() {
            if device != failed.index() {
                inbox.post(Message::Stop);
            }
        }
    }

    /// Tells every worker to leave the step.
    pub(super) fn stop_all(&self) {
        self.inboxes
            .iter()
            .for_each(|inbox| inbox.post(Message::Stop));
    }
}
