//! Sends in progress: the tensors are kept until the others have received them.
//!
//! Small values arrive almost at once, and all values of a step have arrived when its vote has
//! ended. So no thread is woken for each of them: a thread waits only for those whose memory is
//! worth freeing earlier.

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::super::Transfer;

/// Most bytes that are kept until a vote.
const MOST: usize = 1 << 20;

/// Transfers that nothing has waited for.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    transfers: Vec<Transfer>,
    bytes: usize,
    /// Queue of the waiting thread; `None` once the carrier is dropped.
    thread: Option<Sender<Vec<Transfer>>>,
}

impl Pending {
    /// Sets the thread that waits for transfers; `None` ends it.
    pub(super) fn set_thread(&self, thread: Option<Sender<Vec<Transfer>>>) {
        self.0.lock().thread = thread;
    }

    /// Adds a transfer of so many bytes.
    pub(super) fn add(&self, transfer: Transfer, bytes: usize) {
        let mut state = self.0.lock();
        state.transfers.push(transfer);
        state.bytes += bytes;
        if state.bytes > MOST {
            state.hand_over();
        }
    }

    /// Finishes all transfers after a vote: all of them have arrived.
    pub(super) fn finish(&self) {
        let mut state = self.0.lock();
        state.bytes = 0;
        let transfers = std::mem::take(&mut state.transfers);
        drop(state);
        for transfer in transfers {
            // A failure is reported to those waiting for the step.
            let _ = transfer.wait();
        }
    }

    /// After a failed step, lets the thread wait until they are aborted.
    pub(super) fn give_up(&self) {
        self.0.lock().hand_over();
    }
}

impl State {
    fn hand_over(&mut self) {
        self.bytes = 0;
        let transfers = std::mem::take(&mut self.transfers);
        if let Some(thread) = &self.thread {
            // The thread ends after this carrier.
            let _ = thread.send(transfers);
        }
    }
}
