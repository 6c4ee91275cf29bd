//! The stages of one device. No panic of a stage gets past this file.

use super::failure::{Phase, StageError, discard, guarded};
use super::program::Op;
use super::stage::{ActivationHint, Observer, Stage};
use super::task::Task;
use anyhow::ensure;
use gpipe_partitioner::{MicroId, StageId};
use std::sync::Arc;
use std::time::Instant;

/// The stages of one device, in increasing order.
pub(super) struct DeviceStages<S> {
    stages: Vec<LocalStage<S>>,
    /// Replica that the stages belong to, where there are several.
    replica: Option<usize>,
    /// Sum of the stages' `bytes`.
    bytes: u64,
}

struct LocalStage<S> {
    id: StageId,
    replica: Option<usize>,
    stage: S,
    /// Bytes in flight that the stage reported after its last action.
    bytes: u64,
    /// `begin` was called in the current step.
    begun: bool,
}

/// A task that has run.
pub(super) struct Completed<V> {
    pub(super) outputs: Vec<V>,
    pub(super) start: Instant,
    pub(super) end: Instant,
    /// Bytes in flight on the device after the task.
    pub(super) bytes: u64,
}

impl<S: Stage> DeviceStages<S> {
    pub(super) fn new(stages: Vec<(StageId, S)>, replica: Option<usize>) -> Self {
        let local = |(id, stage)| LocalStage {
            id,
            replica,
            stage,
            bytes: 0,
            begun: false,
        };
        let mut stages: Vec<_> = stages.into_iter().map(local).collect();
        stages.sort_by_key(|local| local.id);
        Self {
            stages,
            replica,
            bytes: 0,
        }
    }

    pub(super) fn ids(&self) -> Vec<StageId> {
        self.stages.iter().map(|local| local.id).collect()
    }

    pub(super) fn observers(&self) -> Vec<(StageId, Observer)> {
        let observer = |local: &LocalStage<S>| Some((local.id, local.stage.observer()?));
        self.stages.iter().filter_map(observer).collect()
    }

    /// Prepares for a new step: no stage has begun it, and nothing is in flight.
    pub(super) fn ready(&mut self) {
        self.bytes = 0;
        for local in &mut self.stages {
            (local.bytes, local.begun) = (0, false);
        }
    }

    pub(super) fn begin(&mut self, settings: &Arc<S::Step>) -> Result<(), StageError> {
        self.stages.iter_mut().try_for_each(|local| {
            local.begun = true;
            guarded(|| local.stage.begin(settings))
                .map_err(|e| local.failure(Phase::Begin, None, e))
        })
    }

    /// Passes a hint about activations to the stage at index `local`.
    pub(super) fn activation_hint(
        &mut self,
        local: usize,
        hint: ActivationHint,
    ) -> Result<(), StageError> {
        let local = &mut self.stages[local];
        let (kind, micro) = (hint.consumer().kind, hint.consumer().micro);
        guarded(|| local.stage.activation_hint(hint))
            .map_err(|error| local.failure(Phase::Action(kind), Some(micro), error))
    }

    /// Runs `op`, which must return `wanted` values.
    pub(super) fn run(
        &mut self,
        op: &Op,
        wanted: usize,
        inputs: Vec<S::Value>,
    ) -> Result<Completed<S::Value>, StageError> {
        let local = &mut self.stages[op.local];
        let before = local.bytes;
        let ran = guarded(|| local.run(op, wanted, inputs));
        let ran = ran.map_err(|error| local.failure(op.task.phase(), op.task.micro(), error))?;
        self.bytes = (self.bytes - before).saturating_add(local.bytes);
        Ok(Completed {
            bytes: self.bytes,
            ..ran
        })
    }

    /// Returns the error for outputs of `op` that cannot be sent to another process.
    pub(super) fn not_sent(&self, op: &Op, source: anyhow::Error) -> StageError {
        StageError {
            stage: op.task.stage(),
            replica: self.replica,
            layer: None,
            micro: op.task.micro(),
            action: op.task.sending(),
            source,
        }
    }

    pub(super) fn end(&mut self) -> Result<(), StageError> {
        self.stages.iter_mut().try_for_each(|local| {
            guarded(|| local.stage.end()).map_err(|e| local.failure(Phase::End, None, e))
        })
    }

    /// Aborts every stage that began the step, even after one of them panicked.
    pub(super) fn abort(&mut self) -> Vec<StageError> {
        let begun = self.stages.iter_mut().filter(|local| local.begun);
        begun.filter_map(|local| local.abort().err()).collect()
    }

    /// Runs `job` with every stage, even after one fails.
    pub(super) fn each<R>(
        &mut self,
        mut job: impl FnMut(StageId, &mut S) -> anyhow::Result<R>,
    ) -> Vec<(StageId, Result<R, StageError>)> {
        let run = |local: &mut LocalStage<S>| {
            let result = guarded(|| job(local.id, &mut local.stage));
            (
                local.id,
                result.map_err(|error| local.failure(Phase::Job, None, error)),
            )
        };
        self.stages.iter_mut().map(run).collect()
    }

    /// Runs `job` with `stage`, if the device has it.
    pub(super) fn one<R>(
        &mut self,
        stage: StageId,
        job: impl FnOnce(&mut S) -> anyhow::Result<R>,
    ) -> Option<Result<R, StageError>> {
        let local = self.stages.iter_mut().find(|local| local.id == stage)?;
        let result = guarded(|| job(&mut local.stage));
        Some(result.map_err(|error| local.failure(Phase::Job, None, error)))
    }
}

impl<S: Stage> LocalStage<S> {
    fn run(
        &mut self,
        op: &Op,
        wanted: usize,
        inputs: Vec<S::Value>,
    ) -> anyhow::Result<Completed<S::Value>> {
        let start = Instant::now();
        let (outputs, takers) = match op.task {
            Task::Action(action) => (self.stage.run(action, inputs)?, "edges"),
            Task::Exchange { round, .. } => (self.stage.exchange(round, inputs)?, "other replicas"),
        };
        let end = Instant::now();
        let returned = outputs.len();
        ensure!(
            returned == wanted,
            "returned {returned} values where {wanted} {takers} want one each"
        );
        self.bytes = self.stage.bytes_in_flight();
        Ok(Completed {
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
        // Without a layer if the observer fails.
        let layer = guarded(|| Ok(self.stage.layer())).unwrap_or_default();
        StageError {
            stage: self.id,
            replica: self.replica,
            layer,
            micro,
            action,
            source,
        }
    }
}

impl<S> Drop for DeviceStages<S> {
    fn drop(&mut self) {
        for local in self.stages.drain(..) {
            discard(local);
        }
    }
}
