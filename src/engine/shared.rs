//! State that all threads of an engine share.

use super::carrier::Carrier;
use super::inboxes::Inboxes;
use super::mailbox::Mailbox;
use super::message::{Message, Reply, Report};
use super::program::{Address, SlotAddress};
use super::stage::Stage;
use super::turns::{Sharing, Turns};
use super::watchdog::Note;
use gpipe_partitioner::DeviceId;
use std::fmt::Display;
use std::sync::Arc;

/// State that all threads of an engine share.
pub(super) struct Shared<S: Stage> {
    /// Mailboxes of the workers.
    pub(super) inboxes: Arc<Inboxes<S>>,
    /// Mailbox of the caller.
    pub(super) reports: Mailbox<Report<S::Value>>,
    /// By device here: the current activity of its worker.
    pub(super) notes: Vec<Note>,
    /// Core slots, where devices share too few cores.
    pub(super) turns: Option<Arc<Turns>>,
    /// Carrier, where the pipeline has devices in other processes.
    pub(super) carrier: Option<Arc<dyn Carrier<S::Value>>>,
}

impl<S: Stage> Shared<S> {
    pub(super) fn new(
        inboxes: Inboxes<S>,
        sharing: Option<&Sharing>,
        carrier: Option<Arc<dyn Carrier<S::Value>>>,
    ) -> Self {
        let turns = sharing.map(|sharing| Turns::new(inboxes.mesh().devices(), sharing));
        Self {
            reports: Mailbox::new(),
            notes: inboxes.iter().map(|_| Note::default()).collect(),
            turns: turns.map(Arc::new),
            inboxes: Arc::new(inboxes),
            carrier,
        }
    }

    /// The engine's devices, in increasing order.
    pub(super) fn devices(&self) -> &[DeviceId] {
        self.inboxes.devices()
    }

    /// Sends a value to another device.
    ///
    /// # Errors
    /// The device is in another process and the value cannot be sent there.
    pub(super) fn send(&self, to: SlotAddress, value: S::Value) -> anyhow::Result<()> {
        let SlotAddress { device, slot, .. } = to;
        match (self.inboxes.of(device), &self.carrier) {
            (Some(inbox), _) => inbox.post(Message::Value { slot, value }),
            (None, Some(carrier)) => carrier.send(Address { device, slot }, value)?,
            // An engine without a carrier has all devices of its programs.
            (None, None) => anyhow::bail!("device {device} is nowhere"),
        }
        Ok(())
    }

    pub(super) fn report(&self, device: DeviceId, reply: Reply<S::Value>) {
        self.reports.post(Report { device, reply });
    }

    /// Tells every worker except that of `failed` to leave the step, including those of other
    /// processes.
    pub(super) fn stop_all_but(&self, failed: DeviceId, why: &impl Display) {
        self.inboxes.stop_all_but(Some(failed));
        if let Some(carrier) = &self.carrier {
            carrier.stop(&why.to_string());
        }
    }
}
