//! Graphs of a recorder: who captures, and whether what is replayed has been captured.

use std::collections::HashSet;
use std::thread::{self, ThreadId};

use super::Recorder;
use super::entry::Disorder;
use crate::torch::error::TorchError;

/// What is known of graphs.
#[derive(Debug, Default)]
pub(super) struct Captures {
    begun: u64,
    /// Threads that capture, and what.
    under_way: Vec<(ThreadId, u64)>,
    ended: HashSet<u64>,
    /// The capture that is to fail.
    refused: Option<u64>,
    /// The first thing that was out of order.
    wrong: Option<Disorder>,
}

impl Recorder {
    /// Has the capture of a graph fail when it ends, as a device does when something in it
    /// cannot be captured: number `number` of them, from 0.
    pub fn refuse_capture(&self, number: u64) {
        self.log.state.lock().captures.refused = Some(number);
    }

    /// The calling thread captures a graph from now on.
    pub(in crate::torch::streams) fn begin_capture(&self) -> u64 {
        self.log.state.lock().captures.begin()
    }

    /// It does no more.
    pub(in crate::torch::streams) fn end_capture(&self, number: u64) -> Result<(), TorchError> {
        self.log.state.lock().captures.end(number)
    }

    /// Notes that a graph is put into the main stream.
    pub(in crate::torch::streams) fn replay(&self, number: u64) {
        self.log.state.lock().captures.replay(number);
    }
}

impl Captures {
    fn begin(&mut self) -> u64 {
        self.interrupted("another capture");
        let number = self.begun;
        self.begun += 1;
        self.under_way.push((thread::current().id(), number));
        number
    }

    fn end(&mut self, number: u64) -> Result<(), TorchError> {
        self.under_way.retain(|(_, own)| *own != number);
        if self.refused == Some(number) {
            return Err(TorchError::new(
                "operation not permitted when stream is capturing",
            ));
        }
        self.ended.insert(number);
        Ok(())
    }

    fn replay(&mut self, number: u64) {
        self.interrupted("the replay of a graph");
        if !self.ended.contains(&number) {
            self.note(format!(
                "graph {number} is replayed, which was never captured"
            ));
        }
    }

    /// Something is told to streams by the calling thread: out of order if it captures.
    pub(super) fn interrupted(&mut self, by: &str) {
        let own = thread::current().id();
        if let Some((_, number)) = self.under_way.iter().find(|(thread, _)| *thread == own) {
            let number = *number;
            self.note(format!("{by} while graph {number} is being captured"));
        }
    }

    fn note(&mut self, what: String) {
        self.wrong.get_or_insert_with(|| Disorder::new(what));
    }

    /// What was out of order.
    pub(super) fn check(&self) -> Result<(), Disorder> {
        self.wrong.clone().map_or(Ok(()), Err)
    }
}
