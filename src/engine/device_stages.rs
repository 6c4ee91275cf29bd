//! The stages of one device, behind a border that no panic crosses.

use super::failure::{Phase, StageError, discard, guarded};
use super::program::Op;
use super::stage::{Observer, Stage};
use anyhow::ensure;
use gpipe_partitioner::{MicroId, StageId};
use std::sync::Arc;
use std::time::Instant;

/// The stages of one device, in increasing order.
pub(super) struct Crew<S> {
    seats: Vec<Seat<S>>,
    /// Sum of what the stages said last.
    bytes: u64,
}

struct Seat<S> {
    id: StageId,
    stage: S,
    /// What the stage said last.
    bytes: u64,
    /// `begin` was called in the present step.
    begun: bool,
}

/// An action that was run.
pub(super) struct Ran<V> {
    pub(super) outputs: Vec<V>,
    pub(super) start: Instant,
    pub(super) end: Instant,
    /// In flight on the device after the action.
    pub(super) bytes: u64,
}

impl<S: Stage> Crew<S> {
    pub(super) fn new(stages: Vec<(StageId, S)>) -> Self {
        let seat = |(id, stage)| Seat {
            id,
            stage,
            bytes: 0,
            begun: false,
        };
        let mut seats: Vec<_> = stages.into_iter().map(seat).collect();
        seats.sort_by_key(|seat| seat.id);
        Self { seats, bytes: 0 }
    }

    pub(super) fn ids(&self) -> Vec<StageId> {
        self.seats.iter().map(|seat| seat.id).collect()
    }

    pub(super) fn observers(&self) -> Vec<(StageId, Observer)> {
        let observer = |seat: &Seat<S>| Some((seat.id, seat.stage.observer()?));
        self.seats.iter().filter_map(observer).collect()
    }

    /// A new step: no stage has begun it, and nothing is in flight.
    pub(super) fn ready(&mut self) {
        self.bytes = 0;
        for seat in &mut self.seats {
            (seat.bytes, seat.begun) = (0, false);
        }
    }

    pub(super) fn begin(&mut self, settings: &Arc<S::Step>) -> Result<(), StageError> {
        self.seats.iter_mut().try_for_each(|seat| {
            seat.begun = true;
            guarded(|| seat.stage.begin(settings)).map_err(|e| seat.failure(Phase::Begin, None, e))
        })
    }

    /// `next` takes up a micro-batch once the op that is run now is over.
    pub(super) fn ahead(&mut self, next: &Op) -> Result<(), StageError> {
        let seat = &mut self.seats[next.seat];
        let (kind, micro) = (next.action.kind, next.action.micro);
        guarded(|| seat.stage.ahead(next.action))
            .map_err(|error| seat.failure(Phase::Action(kind), Some(micro), error))
    }

    /// Runs `op`, which has to return `wanted` values.
    pub(super) fn run(
        &mut self,
        op: &Op,
        wanted: usize,
        inputs: Vec<S::Value>,
    ) -> Result<Ran<S::Value>, StageError> {
        let seat = &mut self.seats[op.seat];
        let before = seat.bytes;
        let ran = guarded(|| seat.run(op, wanted, inputs));
        let ran = ran.map_err(|error| {
            seat.failure(Phase::Action(op.action.kind), Some(op.action.micro), error)
        })?;
        self.bytes = (self.bytes - before).saturating_add(seat.bytes);
        Ok(Ran {
            bytes: self.bytes,
            ..ran
        })
    }

    pub(super) fn end(&mut self) -> Result<(), StageError> {
        self.seats.iter_mut().try_for_each(|seat| {
            guarded(|| seat.stage.end()).map_err(|e| seat.failure(Phase::End, None, e))
        })
    }

    /// Aborts every stage that began the step, also after one that panics.
    pub(super) fn abort(&mut self) -> Vec<StageError> {
        let begun = self.seats.iter_mut().filter(|seat| seat.begun);
        begun.filter_map(|seat| seat.abort().err()).collect()
    }

    /// Runs `job` with every stage, also after one that fails.
    pub(super) fn each<R>(
        &mut self,
        mut job: impl FnMut(StageId, &mut S) -> anyhow::Result<R>,
    ) -> Vec<(StageId, Result<R, StageError>)> {
        let run = |seat: &mut Seat<S>| {
            let result = guarded(|| job(seat.id, &mut seat.stage));
            (
                seat.id,
                result.map_err(|error| seat.failure(Phase::Job, None, error)),
            )
        };
        self.seats.iter_mut().map(run).collect()
    }

    /// Runs `job` with `stage`, if it is here.
    pub(super) fn one<R>(
        &mut self,
        stage: StageId,
        job: impl FnOnce(&mut S) -> anyhow::Result<R>,
    ) -> Option<Result<R, StageError>> {
        let seat = self.seats.iter_mut().find(|seat| seat.id == stage)?;
        let result = guarded(|| job(&mut seat.stage));
        Some(result.map_err(|error| seat.failure(Phase::Job, None, error)))
    }
}

impl<S: Stage> Seat<S> {
    fn run(
        &mut self,
        op: &Op,
        wanted: usize,
        inputs: Vec<S::Value>,
    ) -> anyhow::Result<Ran<S::Value>> {
        let start = Instant::now();
        let outputs = self.stage.run(op.action, inputs)?;
        let end = Instant::now();
        let returned = outputs.len();
        ensure!(
            returned == wanted,
            "returned {returned} values where {wanted} edges want one each"
        );
        self.bytes = self.stage.bytes_in_flight();
        Ok(Ran {
            outputs,
            start,
            end,
            bytes: self.bytes,
        })
    }

    fn abort(&mut self) -> Result<(), StageError> {
        let abort = || {
            self.stage.abort();
            Ok(())
        };
        guarded(abort).map_err(|error| self.failure(Phase::Abort, None, error))
    }

    fn failure(&self, action: Phase, micro: Option<MicroId>, source: anyhow::Error) -> StageError {
        // A stage that cannot even name its layer is named without it.
        let layer = guarded(|| Ok(self.stage.layer())).unwrap_or_default();
        StageError {
            stage: self.id,
            layer,
            micro,
            action,
            source,
        }
    }
}

impl<S> Drop for Crew<S> {
    fn drop(&mut self) {
        for seat in self.seats.drain(..) {
            discard(seat);
        }
    }
}
