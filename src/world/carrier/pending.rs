//! What is being sent: the tensors stay until the others have them.
//!
//! Small values are there almost at once, and all values of a step are when its vote has ended. So
//! nobody is woken for each of them: a thread waits for those that take memory worth giving back
//! earlier.

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::super::Transfer;

/// Bytes that are kept until a vote, at most.
const MOST: usize = 1 << 20;

/// Transfers that nobody has waited for.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    transfers: Vec<Transfer>,
    bytes: usize,
    /// To the thread that waits; none once the carrier goes.
    thread: Option<Sender<Vec<Transfer>>>,
}

impl Pending {
    /// Gives transfers to this thread from now on, or to none, which ends it.
    pub(super) fn set_thread(&self, thread: Option<Sender<Vec<Transfer>>>) {
        self.0.lock().thread = thread;
    }

    /// One more, of so many bytes.
    pub(super) fn add(&self, transfer: Transfer, bytes: usize) {
        let mut state = self.0.lock();
        state.transfers.push(transfer);
        state.bytes += bytes;
        if state.bytes > MOST {
            state.hand_over();
        }
    }

    /// A vote has ended: all of them have arrived.
    pub(super) fn finish(&self) {
        let mut state = self.0.lock();
        state.bytes = 0;
        let transfers = std::mem::take(&mut state.transfers);
        drop(state);
        for transfer in transfers {
            // Who failed is heard by those who wait for the step.
            let _ = transfer.wait();
        }
    }

    /// The step has failed: the thread waits until they are aborted.
    pub(super) fn give_up(&self) {
        self.0.lock().hand_over();
    }
}

impl State {
    fn hand_over(&mut self) {
        self.bytes = 0;
        let transfers = std::mem::take(&mut self.transfers);
        if let Some(thread) = &self.thread {
            // It ends after this carrier.
            let _ = thread.send(transfers);
        }
    }
}
