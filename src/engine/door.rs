//! Delivery of values from other processes to the devices of this one.

use super::carrier::{Door, UnwantedValue};
use super::inboxes::Inboxes;
use super::message::Message;
use super::program::{Address, Program};
use super::stage::Stage;
use super::turns::Turns;
use std::sync::Arc;

/// Door for the values of one step. It does not hold the engine's carrier, since the carrier holds
/// it.
pub(super) struct Entrance<S: Stage> {
    pub(super) inboxes: Arc<Inboxes<S>>,
    pub(super) turns: Option<Arc<Turns>>,
    pub(super) program: Arc<Program>,
}

impl<S: Stage> Door<S::Value> for Entrance<S> {
    fn deliver(&self, to: Address, value: S::Value) -> Result<(), UnwantedValue> {
        let unwanted = || UnwantedValue(to);
        let inbox = self.inboxes.of(to.device).ok_or_else(unwanted)?;
        let op = self.program.consumer(to).ok_or_else(unwanted)?;
        if let Some(turns) = &self.turns {
            turns.arrive(to.device, op);
        }
        let slot = to.slot;
        inbox.post(Message::Value { slot, value });
        Ok(())
    }

    fn stop(&self) {
        self.inboxes.stop_all_but(None);
    }
}
