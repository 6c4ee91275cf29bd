//! A step of the engine, ordered between the caller's work before and after.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{MicroId, StageId};

use super::{Accelerators, CopyId, Stages};
use crate::error::Error;
use crate::pipeline::device_times::Times;
use crate::streams::{InTransit, cuda};
use crate::{Mode, StepSettings, TorchError, Values};
use gpipe_engine::{EdgeId, End, EngineError, Entry, Program, Ran, Settled, StepOutcome};

/// Result of an engine step, with accelerator times.
#[derive(Debug)]
pub(in crate::pipeline) struct Stepped {
    pub(in crate::pipeline) outcome: StepOutcome<InTransit>,
    /// Times by the devices' own clocks, if they have any.
    pub(in crate::pipeline) times: Option<Times>,
}

/// The same before it is known whether the step counts.
#[derive(Debug)]
pub(in crate::pipeline) struct Ended<'a> {
    pub(in crate::pipeline) outcome: &'a mut StepOutcome<InTransit>,
    pub(in crate::pipeline) times: Option<Times>,
    /// Start of the step by the host's clock.
    pub(in crate::pipeline) epoch: Instant,
}

/// Local result of a step, extra data kept from it, and the message of each process.
type Told<T> = (StepOutcome<InTransit>, T, Vec<Vec<u8>>);

/// Input of the engine.
type Prepared = (Arc<StepSettings>, Vec<Entry<InTransit>>);

impl Stages {
    /// Runs a program over the caller's values: for each edge from the caller, in order, a value
    /// for each micro-batch.
    pub(in crate::pipeline) fn step(
        &mut self,
        program: &Arc<Program>,
        step: u64,
        mode: Mode,
        columns: Vec<Vec<Values>>,
    ) -> Result<Stepped, Error> {
        let keep = |_: &Self, ended: Ended<'_>| Ok((ended.times, Vec::new()));
        let (outcome, times, _) = self.step_telling(program, (step, mode), columns, keep)?;
        Ok(Stepped { outcome, times })
    }

    /// Does the same, where `tell` makes a message to all processes from the local result. It is
    /// part of the step: if it fails anywhere, the step counts nowhere. *Returns* also the data
    /// that `tell` keeps, and the messages of all processes, in the order of ranks.
    pub(in crate::pipeline) fn step_telling<T>(
        &mut self,
        program: &Arc<Program>,
        (step, mode): (u64, Mode),
        columns: Vec<Vec<Values>>,
        tell: impl FnOnce(&Self, Ended<'_>) -> Result<(T, Vec<u8>), Error>,
    ) -> Result<Told<T>, Error> {
        let prepared = self.prepare(program, (step, mode), columns);
        let (settings, entries) = match prepared {
            Ok(prepared) => prepared,
            // Tell the other processes.
            Err(error) => return self.conclude(Err(error)),
        };
        let watch = match self.watch() {
            Ok(watch) => watch,
            Err(error) => return self.conclude(Err(error.into())),
        };
        let epoch = Instant::now();
        let ran = self.engine.run(program, settings, entries);
        drop(watch);
        let mut ran = match ran {
            Ok(ran) => ran,
            Err(error) => {
                self.end_tasks();
                return Err(error.into());
            }
        };
        let told = match ran.outcome() {
            None => Ok(None),
            Some(outcome) => {
                let times = self.join_step(outcome, epoch);
                let ended = times.and_then(|times| {
                    let ended = Ended {
                        outcome,
                        times,
                        epoch,
                    };
                    tell(self, ended)
                });
                ended.map(Some)
            }
        };
        let (kept, told) = match told {
            Ok(Some((kept, told))) => (Some(kept), Ok(told)),
            Ok(None) => (None, Ok(Vec::new())),
            Err(error) => (None, Err(error)),
        };
        let settled = self.settle(ran, told)?;
        // Without `kept` there was no outcome, or an error.
        let kept = kept.ok_or(EngineError::Broken)?;
        Ok((settled.outcome, kept, settled.told))
    }

    fn prepare(
        &mut self,
        program: &Program,
        (step, mode): (u64, Mode),
        columns: Vec<Vec<Values>>,
    ) -> Result<Prepared, Error> {
        self.finish_update()?;
        let accelerators = self.accelerators.as_ref();
        let caller_events = accelerators.map(Accelerators::caller_events).transpose();
        let caller_events = caller_events.map_err(Error::Accelerator)?;
        let entries = self.entries(program, columns, |values| match &caller_events {
            Some(caller_events) => caller_events.in_transit(values),
            None => Ok(values.into()),
        })?;
        let settings = StepSettings {
            step,
            mode,
            caller_events,
        };
        Ok((Arc::new(settings), entries))
    }

    /// Orders the caller's next work after the step.
    fn join_step(
        &self,
        outcome: &mut StepOutcome<InTransit>,
        epoch: Instant,
    ) -> Result<Option<Times>, Error> {
        let Some(accelerators) = &self.accelerators else {
            return Ok(None);
        };
        let task_events = accelerators.join().map_err(Error::Accelerator)?;
        let shares = accelerators.devices().into_iter();
        let shares: Vec<_> = shares.map(|device| cuda::submit_guard(device)).collect();
        for in_transit in outcome.exits.values().chain(outcome.gradients.values()) {
            in_transit.hand_out()?;
        }
        drop(shares);
        let mut events = vec![Vec::new(); accelerators.places.len()];
        let own = std::mem::take(&mut outcome.events);
        for (device, own) in self.here.iter().zip(own) {
            events[device.index()] = own;
        }
        Ok(Some(Times::new(
            &accelerators.places,
            task_events,
            events,
            epoch,
            (&accelerators.anchors, accelerators.patience),
        )))
    }

    fn settle(
        &mut self,
        ran: Ran<InTransit>,
        told: Result<Vec<u8>, Error>,
    ) -> Result<Settled<InTransit>, Error> {
        let ranks = self.ranks.as_ref();
        let told = told.map(|told| ranks.map_or_else(Vec::new, |ranks| ranks.tell(&told)));
        match self.engine.settle(ran, told.map_err(anyhow::Error::new)) {
            Ok(mut settled) => {
                if let Some(ranks) = &self.ranks {
                    settled.told = ranks.hear(&settled.told);
                }
                Ok(settled)
            }
            Err(error) => {
                self.end_tasks();
                Err(as_it_was(error))
            }
        }
    }

    /// Ends the tasks of a failed step that did not reach their end.
    fn end_tasks(&mut self) {
        if self.accelerators.is_none() {
            return;
        }
        // A failed device fails here too; the step's own error is more specific.
        let _ = self
            .engine
            .on_each(|_, stage| Ok(stage.streams().end_task()?));
        if let Some(accelerators) = &self.accelerators {
            let _ = accelerators.join();
        }
    }

    /// Returns the micro-batches for each edge from the caller to a local stage.
    pub(super) fn entries(
        &self,
        program: &Program,
        columns: Vec<Vec<Values>>,
        in_transit: impl Fn(Values) -> Result<InTransit, TorchError>,
    ) -> Result<Vec<Entry<InTransit>>, TorchError> {
        let edges = program.topology().outgoing(End::Caller).zip(columns);
        let stage = |end: End| match end {
            End::Stage(stage) => Some(stage),
            End::Caller => None,
        };
        // The replica of each micro-batch.
        let replicas = (0..self.replicas())
            .flat_map(|replica| program.micro_batches_of(replica).map(move |_| replica));
        let replicas: Vec<usize> = replicas.collect();
        let is_here = |to: Option<StageId>, micro: usize| {
            let copy = to.zip(replicas.get(micro));
            copy.is_some_and(|(stage, &replica)| self.is_here(CopyId { stage, replica }))
        };
        let entry = |edge: EdgeId, (micro, values)| {
            Ok(Entry {
                edge,
                micro: MicroId(micro),
                value: in_transit(values)?,
            })
        };
        let all = edges.flat_map(|((edge, ends), parts)| {
            let to = stage(ends.to);
            let parts = parts.into_iter().enumerate();
            parts.map(move |part| (edge, to, part))
        });
        let here = all.filter(|(_, to, (micro, _))| is_here(*to, *micro));
        let here = here.map(|(edge, _, part)| (edge, part));
        here.map(|(edge, part)| entry(edge, part)).collect()
    }
}

/// Recovers the pipeline's own error, which was passed through the engine.
fn as_it_was(error: EngineError) -> Error {
    match error {
        EngineError::Untold(error) => error
            .downcast::<Error>()
            .unwrap_or_else(|other| EngineError::Untold(other).into()),
        error => error.into(),
    }
}
