//! The stages as the pipeline uses them: the engine, and its ordering with the caller's own work on
//! accelerators before and after.

mod all_processes;
mod owners;
mod replica_exchange;
mod step;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpipe_partitioner::{DeviceId, StageId};
use parking_lot::Mutex;
use tch::{Device, Tensor};

use super::device_times::Anchors;
use super::host_wait::{HostWait, TOLD_BEFORE, in_time};
use super::local_steps::LocalSteps;
use super::ranks::{CopyId, Ranks};
use crate::error::Error;
use crate::streams::{CallerEvents, MemorySpace, Stream, TaskEvents, TaskLog, cuda, lost};
use crate::{OutOfMemory, Sums, TorchError, TorchStage, copy_to_host};
use gpipe_engine::{Engine, EngineError};

pub(super) use owners::{in_model_order, of_all_in_order};
pub(super) use step::{Ended, Stepped};
pub(super) use update::{Phase, Update};

/// An engine of stages.
#[derive(Debug)]
pub(crate) struct Stages {
    engine: Engine<TorchStage>,
    accelerators: Option<Accelerators>,
    /// The processes of the other stages, if there are any.
    ranks: Option<Ranks>,
    /// Devices of this process, in increasing order.
    here: Vec<DeviceId>,
    /// Which copies of a stage have the sums of its gradients.
    sums: Sums,
    /// The rounds of replicas that train alone.
    local: Option<LocalSteps>,
    /// An update that an error interrupted, which is finished before anything else.
    unfinished: Option<Update>,
}

/// The accelerators of the stages.
#[derive(Debug, Clone)]
pub(super) struct Accelerators {
    /// Memory space of each device of the engine.
    pub(super) places: Vec<MemorySpace>,
    pub(super) task_logs: Vec<Arc<TaskLog>>,
    /// Whether a host wait within a step fails the step.
    pub(super) forbid_host_waits: bool,
    /// The calling thread's patience with them.
    pub(super) patience: Option<Duration>,
    anchors: Anchors,
    /// The caller's current stream in its last call, by accelerator.
    last_streams: Arc<Mutex<BTreeMap<usize, Stream>>>,
}

impl Accelerators {
    pub(super) fn new(places: Vec<MemorySpace>) -> Self {
        let task_logs = places.iter().map(|_| Arc::default()).collect();
        let own = Self {
            places,
            task_logs,
            forbid_host_waits: false,
            patience: None,
            anchors: Anchors::default(),
            last_streams: Arc::default(),
        };
        lost::look_among(own.devices());
        own
    }

    /// Returns their numbers without duplicates.
    fn devices(&self) -> Vec<usize> {
        let numbers = self.places.iter().filter_map(|place| match place {
            MemorySpace::Accelerator(device) => Some(*device),
            MemorySpace::Host => None,
        });
        let mut numbers: Vec<usize> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// # Errors
    /// A device is lost, now or since an earlier call.
    fn caller_events(&self) -> anyhow::Result<Arc<CallerEvents>> {
        lost::check()?;
        let caller_events = self
            .follow_caller()
            .and_then(|()| CallerEvents::new(self.devices().into_iter()));
        Ok(Arc::new(
            caller_events.map_err(|error| self.explain_loss(error))?,
        ))
    }

    /// If the caller changed its current streams, makes the new ones wait for earlier work in the
    /// old ones, such as the next step's loss scale.
    fn follow_caller(&self) -> Result<(), TorchError> {
        for device in self.devices() {
            let current = cuda::current(device)?;
            let last = self.last_streams.lock().insert(device, current);
            if let Some(last) = last.filter(|last| *last != current) {
                let _shared = cuda::submit_guard(device);
                cuda::wait(current, &cuda::record(last)?)?;
            }
        }
        Ok(())
    }

    /// Orders the caller's next work after the devices' submitted work.
    fn join(&self) -> anyhow::Result<Vec<TaskEvents>> {
        self.join_all().map_err(|error| self.explain_loss(error))
    }

    fn explain_loss(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error = error.into();
        let device = self.devices().into_iter().next();
        match device.map(cuda::current) {
            Some(Ok(stream)) => lost::explain(stream, "what the caller does", error),
            _ => error,
        }
    }

    fn join_all(&self) -> Result<Vec<TaskEvents>, TorchError> {
        let task_events: Vec<TaskEvents> = self
            .task_logs
            .iter()
            .map(|task_log| task_log.take())
            .collect();
        for device in self.devices() {
            let _shared = cuda::submit_guard(device);
            let current = cuda::current(device)?;
            let ends = task_events
                .iter()
                .filter_map(|task_events| task_events.end.as_ref());
            for end in ends {
                cuda::wait(current, end)?;
            }
        }
        Ok(task_events)
    }
}

impl Stages {
    /// Orders the building of the stages before the caller's next work.
    pub(super) fn new(
        engine: Engine<TorchStage>,
        accelerators: Option<Accelerators>,
        (ranks, here): (Option<Ranks>, Vec<DeviceId>),
        (sums, local): (Sums, Option<LocalSteps>),
    ) -> Result<Self, Error> {
        let stages = Self {
            engine,
            accelerators,
            ranks,
            here,
            sums,
            local,
            unfinished: None,
        };
        if let Some(accelerators) = &stages.accelerators {
            accelerators.join().map_err(Error::Accelerator)?;
            let (devices, patience) = (accelerators.devices(), accelerators.patience);
            (accelerators.anchors).drop_in(&devices, patience)?;
        }
        Ok(stages)
    }

    /// Returns whether all devices are asynchronous (none is the CPU): the host can submit work and
    /// continue.
    pub(super) fn all_async(&self) -> bool {
        let places = self.accelerators.iter().flat_map(|all| &all.places);
        let mut places = places.peekable();
        places.peek().is_some() && places.all(|place| *place != MemorySpace::Host)
    }

    /// Forbids host waits while the result lives, if the builder was told so.
    pub(super) fn watch(&self) -> Result<Option<Watch>, TorchError> {
        let forbid = (self.accelerators.as_ref()).is_some_and(|all| all.forbid_host_waits);
        forbid.then(Watch::begin).transpose()
    }

    /// Explains an error of libtorch in the caller's own use of accelerators.
    pub(super) fn explain(&self, doing: &'static str, error: Error) -> Error {
        let Some(all) = &self.accelerators else {
            return error;
        };
        let Error::Torch(error) = error else {
            return error;
        };
        let device = all.devices().into_iter().next();
        let device = device.map_or(Device::Cpu, Device::Cuda);
        let error = all.explain_loss(OutOfMemory::explain(device, error.into()));
        Error::Accelerator(error.context(doing))
    }

    /// Waits for all work submitted to the devices, at most as long as the patience; without a
    /// patience, does not wait.
    ///
    /// # Errors
    /// A device did not finish in time.
    pub(crate) fn in_time(&self) -> Result<(), TorchError> {
        let Some((all, patience)) =
            (self.accelerators.as_ref()).and_then(|all| Some((all, all.patience?)))
        else {
            return Ok(());
        };
        for device in all.devices() {
            let shared = cuda::submit_guard(device);
            let event = cuda::record(cuda::current(device)?)?;
            drop(shared);
            in_time(&event, device, Some(patience), TOLD_BEFORE)?;
        }
        Ok(())
    }

    /// Copies a tensor to host memory; returns the copy and its completion. The copy is ordered
    /// after the caller's current stream.
    pub(super) fn to_host(&self, tensor: Tensor) -> Result<(Tensor, Option<HostWait>), TorchError> {
        let (Some(all), Device::Cuda(device)) = (&self.accelerators, tensor.device()) else {
            return Ok((tensor, None));
        };
        let _shared = cuda::submit_guard(device);
        let copy = copy_to_host(&tensor)?;
        let stream = cuda::current(device)?;
        let ready = HostWait {
            stream,
            event: cuda::record(stream)?,
            patience: all.patience,
        };
        Ok((copy, Some(ready)))
    }

    /// Returns the progress of replicas that train alone; `None` if they do not.
    pub(super) fn local(&self) -> Option<&LocalSteps> {
        self.local.as_ref()
    }

    pub(super) fn local_mut(&mut self) -> Option<&mut LocalSteps> {
        self.local.as_mut()
    }

    /// Returns the number of replicas.
    pub(super) fn replicas(&self) -> usize {
        self.engine.mesh().replicas()
    }

    /// Runs a job as [`Engine::on_each`], with the copies of the stages in all replicas.
    pub(crate) fn on_each<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, Error> {
        self.finish_update()?;
        let Some(accelerators) = &self.accelerators else {
            return Ok(self.engine.on_each(job)?);
        };
        let caller_events = accelerators.caller_events().map_err(Error::Accelerator)?;
        let done = (self.engine)
            .on_each(move |id, stage| task(id, &caller_events, stage, |own| job(id, own)));
        joined(accelerators, done)
    }

    /// Does the same, with the result of one local copy of each stage: between steps all copies
    /// have the same parameters, buffers and gradients.
    pub(crate) fn on_one_of_each<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, Error> {
        let mut done = self.on_each(move |id, stage| Ok((id, job(id, stage)?)))?;
        done.dedup_by_key(|(id, _)| *id);
        Ok(done.into_iter().map(|(_, result)| result).collect())
    }

    /// Does the same with the copies in replica 0; each stage has exactly one over all processes.
    pub(super) fn on_first_replica<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, Error> {
        let done = self.on_each(move |id, stage| {
            let first = stage.replica() == 0;
            first.then(|| job(id, stage)).transpose()
        })?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Runs a job as [`Engine::on_copy`].
    pub(super) fn on_copy<R: Send + 'static>(
        &mut self,
        CopyId { stage, replica }: CopyId,
        job: impl FnOnce(&mut TorchStage) -> anyhow::Result<R> + Send + 'static,
    ) -> Result<R, Error> {
        self.finish_update()?;
        let Some(accelerators) = &self.accelerators else {
            return Ok(self.engine.on_copy(stage, replica, job)?);
        };
        let caller_events = accelerators.caller_events().map_err(Error::Accelerator)?;
        let job = move |own: &mut TorchStage| task(stage, &caller_events, own, job);
        let done = self.engine.on_copy(stage, replica, job);
        joined(accelerators, done)
    }
}

/// See [`Stages::watch`].
#[derive(Debug)]
pub(super) struct Watch;

impl Watch {
    fn begin() -> Result<Self, TorchError> {
        crate::forbid_waits(true)?;
        Ok(Self)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Switching off cannot fail if switching on succeeded.
        let _ = crate::forbid_waits(false);
    }
}

/// Runs a job on a stage, ordered between the caller's work before and after.
fn task<R>(
    id: StageId,
    caller_events: &CallerEvents,
    stage: &mut TorchStage,
    job: impl FnOnce(&mut TorchStage) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let streams = stage.shared_streams();
    let _shared = streams.submit_scope();
    let _named = stage.acting(c"between steps");
    let done = streams
        .begin_task(Some(caller_events))
        .map_err(anyhow::Error::from)
        .and_then(|()| job(stage));
    let ended = streams.end_task();
    // The task's own error is more specific.
    let done = done.and_then(|done| Ok(ended.map(|()| done)?));
    done.map_err(|error| {
        let device = streams.device();
        let error = OutOfMemory::explain(device, error);
        streams.explain_loss(format_args!("a task of stage {id}"), error)
    })
}

/// Joins the result of a task with the caller's next work.
fn joined<R>(accelerators: &Accelerators, done: Result<R, EngineError>) -> Result<R, Error> {
    let joined = accelerators.join();
    let done = done?;
    joined.map_err(Error::Accelerator)?;
    Ok(done)
}
