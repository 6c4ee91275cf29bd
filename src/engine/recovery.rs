//! From a step that did not come to its end to an engine that is usable again.

use super::failure::{EngineError, StageError, discard};
use super::gather::Asked;
use super::handle::Engine;
use super::message::{Message, News, Order};
use super::program::Program;
use super::stage::Stage;
use std::sync::Arc;

/// What the last call has left.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing: it came to its end.
    Ready,
    /// This step, which is undone once those who owe their report of it have come back.
    Stalled(Arc<Program>),
    /// Something half-done.
    Broken,
}

impl<S: Stage> Engine<S> {
    /// Lets every stage undo a failed step, which every worker has left. Returns the first
    /// failure on the way, in stage order.
    pub(super) fn abort(&mut self) -> Result<Option<StageError>, EngineError> {
        for inbox in &self.lines.inboxes {
            inbox.post(Message::Order(Order::Abort));
        }
        let gathered = self.gather(Asked::all(self.devices()))?.complete()?;
        let failures = gathered.in_device_order().flat_map(|(_, news)| match news {
            News::Aborted(failures) => failures,
            _ => Vec::new(),
        });
        Ok(failures.min_by_key(|failure| failure.stage))
    }

    /// Leaves a step in which devices stalled. It is undone now if they have come back
    /// meanwhile, otherwise when they have.
    pub(super) fn leave(&mut self, program: &Arc<Program>) -> Result<(), EngineError> {
        self.state = State::Stalled(Arc::clone(program));
        if self.owing.is_empty() {
            self.undo()?;
        }
        Ok(())
    }

    /// Whether a call can begin; waits for those who owe their report of a step that was left.
    pub(super) fn ready(&mut self) -> Result<(), EngineError> {
        let program = match &self.state {
            State::Ready => return Ok(()),
            State::Broken => return Err(EngineError::Broken),
            State::Stalled(program) => Arc::clone(program),
        };
        let owing = std::mem::take(&mut self.owing);
        let gathered = self.gather(Asked::these(owing).of_step(&program))?;
        if self.owing.is_empty() {
            discard(gathered);
            return self.undo();
        }
        gathered.complete().map(discard)
    }

    /// Undoes a step that was left.
    fn undo(&mut self) -> Result<(), EngineError> {
        self.state = State::Broken;
        let failure = self.abort()?;
        self.state = State::Ready;
        failure.map_or(Ok(()), |failure| Err(EngineError::Stage(failure)))
    }

    /// Takes note of those who have come back since the last call gave up.
    pub(super) fn hear_late_reports(&mut self) {
        let mut late = Vec::new();
        self.lines.reports.poll(&mut late);
        for report in late {
            self.owing.retain(|device| *device != report.device);
            discard(report);
        }
    }
}
