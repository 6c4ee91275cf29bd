//! Operations over the stages of all processes; with one process, over its own.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{Span, StageId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use super::{CopyId, Stages};
use crate::error::Error;
use crate::pipeline::device_times::by_host;
use crate::pipeline::ranks::{Ranks, StopLine, read, written};
use crate::world::World;
use crate::{TorchStage, Values};
use gpipe_engine::ActionEvent;

impl Stages {
    /// Returns whether stages are in several processes.
    pub(in crate::pipeline) fn are_spread(&self) -> bool {
        self.ranks.is_some()
    }

    /// Returns the world of the stages' processes; `None` for a single process.
    pub(in crate::pipeline) fn world(&self) -> Option<&Arc<World>> {
        self.ranks.as_ref().map(Ranks::world)
    }

    /// See [`StopLine`].
    pub(in crate::pipeline) fn stop_line(&self) -> Option<&Arc<StopLine>> {
        self.ranks.as_ref().map(Ranks::stop_line)
    }

    /// Returns whether a copy of a stage is in this process.
    pub(in crate::pipeline) fn is_here(&self, copy: CopyId) -> bool {
        let mut here = self.engine.copies_of(copy.stage);
        here.any(|device| self.engine.mesh().replica_of(device) == copy.replica)
    }

    /// Begins a call in all processes after their preparation: see
    /// [`Ranks::agree_on_call`](crate::pipeline::ranks::Ranks::agree_on_call).
    pub(in crate::pipeline) fn agree_on_call<T>(
        &self,
        call: &str,
        own: Result<T, Error>,
    ) -> Result<T, Error> {
        match &self.ranks {
            Some(ranks) => ranks.agree_on_call(call, own),
            None => own,
        }
    }

    /// Begins a call in this process after its preparation: see
    /// [`Ranks::begin_call`](crate::pipeline::ranks::Ranks::begin_call).
    pub(in crate::pipeline) fn begin_call<T>(
        &self,
        call: &str,
        own: Result<T, Error>,
    ) -> Result<T, Error> {
        match &self.ranks {
            Some(ranks) => ranks.begin_call(call, own),
            None => own,
        }
    }

    /// Ends a call in this process: it counts if it succeeded in all processes.
    pub(in crate::pipeline) fn conclude<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        match &self.ranks {
            Some(ranks) => ranks.conclude(done),
            None => done,
        }
    }

    /// Does the same, and exchanges a message from each process, in the order of ranks.
    pub(in crate::pipeline) fn conclude_telling<T, R: Serialize + DeserializeOwned>(
        &self,
        done: Result<(T, R), Error>,
    ) -> Result<(T, Vec<R>), Error> {
        let Some(ranks) = &self.ranks else {
            return done.map(|(done, told)| (done, vec![told]));
        };
        let done = done.and_then(|(done, told)| Ok((done, written(&told)?)));
        let (done, told) = ranks.conclude_telling(done)?;
        Ok((
            done,
            told.iter()
                .map(|told| read(told))
                .collect::<Result<_, _>>()?,
        ))
    }

    /// Gives up all processes: this one cannot follow what the others have done.
    pub(in crate::pipeline) fn lose(&self, why: &Error) {
        if let Some(ranks) = &self.ranks {
            ranks.lose(why);
        }
    }

    /// Gathers a value from each process, in the order of ranks.
    pub(in crate::pipeline) fn share<T: Serialize + DeserializeOwned>(
        &self,
        own: T,
    ) -> Result<Vec<T>, Error> {
        match &self.ranks {
            Some(ranks) => ranks.share(&own),
            None => Ok(vec![own]),
        }
    }

    /// Runs a job as [`Stages::on_first_replica`], with the stages of all processes.
    pub(in crate::pipeline) fn on_all<R: Serialize + DeserializeOwned + Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, Error> {
        let here = self.on_first_replica(move |id, stage| Ok((id.index(), job(id, stage)?)))?;
        let mut all: Vec<(usize, R)> = self.share(here)?.into_iter().flatten().collect();
        all.sort_by_key(|(stage, _)| *stage);
        Ok(all.into_iter().map(|(_, result)| result).collect())
    }

    /// Returns the spans of the local devices since the step began.
    pub(in crate::pipeline) fn spans(&self, events: &[Vec<ActionEvent>]) -> Vec<Span> {
        let all = self.here.iter().zip(events);
        let spans = all.flat_map(|(device, own)| own.iter().map(|event| by_host(*device, event)));
        spans.collect()
    }

    /// Converts a moment to seconds of the clock that all processes share.
    pub(in crate::pipeline) fn clock_seconds(&self, at: Instant) -> f64 {
        self.ranks
            .as_ref()
            .map_or(0.0, |ranks| ranks.clock().seconds(at))
    }

    /// Sends a tensor, which may be absent, from one copy of a stage to another. *Returns* it at
    /// the receiver; elsewhere this does nothing.
    pub(in crate::pipeline) fn carry(
        &self,
        tensor: Option<Tensor>,
        from: CopyId,
        to: CopyId,
    ) -> Result<Option<Tensor>, Error> {
        let Some(ranks) = &self.ranks else {
            return Ok(tensor);
        };
        match (self.is_here(from), self.is_here(to)) {
            (true, true) => Ok(tensor),
            (false, false) => Ok(None),
            _ => ranks.carry(tensor.as_ref(), from, to),
        }
    }

    /// Sends values from the process of a copy of a stage to all processes.
    pub(in crate::pipeline) fn broadcast(
        &self,
        own: Values,
        from: CopyId,
    ) -> Result<Values, Error> {
        match &self.ranks {
            Some(ranks) => ranks.broadcast(own, from),
            None => Ok(own),
        }
    }
}
