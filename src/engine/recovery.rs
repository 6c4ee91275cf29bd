//! Makes the engine usable again after a step that failed or stalled.

use super::failure::{EngineError, StageError, discard};
use super::handle::Engine;
use super::message::{Command, Message, Reply};
use super::program::Program;
use super::stage::Stage;
use super::state::{Asked, State};
use std::sync::Arc;

impl<S: Stage> Engine<S> {
    /// Makes every stage undo a failed step, which every worker has left. Returns the first failure
    /// of an `abort`, in stage order.
    pub(super) fn abort(&mut self) -> Result<Option<StageError>, EngineError> {
        for inbox in self.shared.inboxes.iter() {
            inbox.post(Message::Command(Command::Abort));
        }
        let gathered = self
            .gather(Asked::these(self.shared.devices()))?
            .complete()?;
        let failures = gathered
            .in_device_order()
            .flat_map(|(_, reply)| match reply {
                Reply::Aborted(failures) => failures,
                _ => Vec::new(),
            });
        Ok(failures.min_by_key(|failure| (failure.stage, failure.replica)))
    }

    /// Abandons a step in which devices stalled. The step is undone now if their reports have
    /// arrived meanwhile, otherwise by the next call. Other processes cannot wait for that.
    pub(super) fn abandon(
        &mut self,
        program: &Arc<Program>,
        stalled: &EngineError,
    ) -> Result<(), EngineError> {
        if self.shared.carrier.is_some() {
            self.lose(stalled);
            return Ok(());
        }
        self.state = State::Stalled(Arc::clone(program));
        if self.overdue.is_empty() {
            self.undo()?;
        }
        Ok(())
    }

    /// Makes sure that a call can begin: waits for the overdue reports of an abandoned step, and
    /// undoes the step.
    pub(super) fn ensure_ready(&mut self) -> Result<(), EngineError> {
        let program = match &self.state {
            State::Ready => return Ok(()),
            State::Broken => return Err(EngineError::Broken),
            State::Stalled(program) => Arc::clone(program),
        };
        let overdue = std::mem::take(&mut self.overdue);
        let gathered = self.gather(Asked::these(&overdue).of_step(&program))?;
        if self.overdue.is_empty() {
            discard(gathered);
            return self.undo();
        }
        gathered.complete().map(discard)
    }

    /// Undoes an abandoned step.
    fn undo(&mut self) -> Result<(), EngineError> {
        self.state = State::Broken;
        let failure = self.abort()?;
        self.state = State::Ready;
        failure.map_or(Ok(()), |failure| Err(EngineError::Stage(failure)))
    }

    /// Takes the overdue reports that have arrived since the last call.
    pub(super) fn take_late_reports(&mut self) {
        let mut late = Vec::new();
        self.shared.reports.poll(&mut late);
        for report in late {
            self.overdue.retain(|device| *device != report.device);
            discard(report);
        }
    }
}
