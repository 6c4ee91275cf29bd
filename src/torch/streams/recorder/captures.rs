//! Graph captures of a recorder: the capturing thread of each device, and whether every replayed
//! graph was captured.

use std::collections::HashSet;
use std::thread::{self, ThreadId};

use super::Recorder;
use super::log_entry::Disorder;
use crate::error::TorchError;

/// The captures under way, and those that have ended.
#[derive(Debug, Default)]
pub(super) struct Captures {
    begun: u64,
    under_way: Vec<UnderWay>,
    ended: HashSet<u64>,
    /// The number of the capture that a test has fail.
    refused: Option<u64>,
    /// The first thing that was out of order.
    wrong: Option<Disorder>,
}

/// A capture that has begun.
#[derive(Debug)]
struct UnderWay {
    thread: ThreadId,
    device: usize,
    number: u64,
}

impl Recorder {
    /// Makes capture number `number`, from 0, fail when it ends, as a device does if something in
    /// it cannot be captured.
    pub fn refuse_capture(&self, number: u64) {
        self.log.state.lock().captures.refused = Some(number);
    }

    /// The calling thread captures a graph from now on.
    pub(in crate::streams) fn begin_capture(&self, device: usize) -> u64 {
        self.log.state.lock().captures.begin(device)
    }

    /// The calling thread ends its capture.
    pub(in crate::streams) fn end_capture(&self, number: u64) -> Result<(), TorchError> {
        self.log.state.lock().captures.end(number)
    }

    /// Records that a graph is submitted to the main stream.
    pub(in crate::streams) fn replay(&self, number: u64, device: usize) {
        self.log.state.lock().captures.replay(number, device);
    }
}

impl Captures {
    fn begin(&mut self, device: usize) -> u64 {
        self.interrupted("another capture", Some(device));
        let number = self.begun;
        self.begun += 1;
        self.under_way.push(UnderWay {
            thread: thread::current().id(),
            device,
            number,
        });
        number
    }

    fn end(&mut self, number: u64) -> Result<(), TorchError> {
        self.under_way.retain(|own| own.number != number);
        if self.refused == Some(number) {
            return Err(TorchError::new(
                "operation not permitted when stream is capturing",
            ));
        }
        self.ended.insert(number);
        Ok(())
    }

    fn replay(&mut self, number: u64, device: usize) {
        self.interrupted("the replay of a graph", Some(device));
        if !self.ended.contains(&number) {
            self.note(format!(
                "graph {number} is replayed, which was never captured"
            ));
        }
    }

    /// The calling thread submits something to a device (or does something on the host): out
    /// of order if this thread is capturing, or another thread is on that device.
    pub(super) fn interrupted(&mut self, by: &str, device: Option<usize>) {
        let thread = thread::current().id();
        let mut all = self.under_way.iter();
        let found = all.find(|own| own.thread == thread || Some(own.device) == device);
        if let Some(found) = found {
            let whose = if found.thread == thread {
                ""
            } else {
                " by another thread"
            };
            let number = found.number;
            self.note(format!(
                "{by} while graph {number} is being captured{whose}"
            ));
        }
    }

    fn note(&mut self, what: String) {
        self.wrong.get_or_insert_with(|| Disorder::new(what));
    }

    /// # Errors
    /// The first thing that was out of order.
    pub(super) fn check(&self) -> Result<(), Disorder> {
        self.wrong.clone().map_or(Ok(()), Err)
    }
}
