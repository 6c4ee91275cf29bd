//! The engine's public handle.

use super::carrier::Carrier;
use super::device_stages::DeviceStages;
use super::entry::{self, Entry};
use super::failure::{EngineError, discard};
use super::inboxes::Inboxes;
use super::mesh::Mesh;
use super::message::{Command, Job, Message, Reply, StepCommand};
use super::program::Program;
use super::shared::Shared;
use super::stage::{Observer, Stage};
use super::state::{Asked, State};
use super::step_result::{Ran, Settled, StepOutcome};
use super::sync::{Builder, JoinHandle, Mutex};
use super::turns::Sharing;
use super::worker::{StageBuilder, run_worker};
use gpipe_partitioner::{DeviceId, StageId};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs checked schedules over stages, one long-lived thread per device.
///
/// Dropping it drops the stages, each on its own thread, and joins the threads.
#[doc(alias = "pipeline runtime")]
pub struct Engine<S: Stage> {
    pub(super) shared: Arc<Shared<S>>,
    threads: Vec<JoinHandle<()>>,
    /// The stages of each device, in increasing order.
    pub(super) placement: Vec<Vec<StageId>>,
    /// Observers of the stages that have one.
    pub(super) observers: Vec<StageObserver>,
    pub(super) patience: Option<Duration>,
    /// Stalled devices whose report the last call did not wait for.
    pub(super) overdue: Vec<DeviceId>,
    pub(super) state: State,
}

/// Observer that names the layer running in a stage.
pub(super) struct StageObserver {
    pub(super) device: DeviceId,
    pub(super) stage: StageId,
    pub(super) observer: Observer,
}

impl<S: Stage> Engine<S> {
    /// Starts one thread per builder, named `stage-0`, `stage-1`, …, which builds
    /// the stages of its device and keeps them.
    ///
    /// # Errors
    /// [`EngineError::Build`] for the lowest device whose builder fails or panics,
    /// [`EngineError::Placement`] when the stages are not 0, 1, 2, … once each. All
    /// threads are joined by then.
    pub fn new(builders: Vec<StageBuilder<S>>) -> Result<Self, EngineError> {
        Self::replicated(1, builders, None)
    }

    /// Same as [`Engine::new`], for devices that take turns because they share too few cores: among
    /// devices that are ready to run an action, those with the most
    /// [urgent](gpipe_partitioner::urgencies) next action go first. The timeline counts an action
    /// from its turn on.
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn taking_turns(
        builders: Vec<StageBuilder<S>>,
        sharing: &Sharing,
    ) -> Result<Self, EngineError> {
        Self::replicated(1, builders, Some(sharing))
    }

    /// Same as [`Engine::new`], for `replicas` replicas of a pipeline, with a copy of each stage in
    /// each; the [`Mesh`] numbers the devices. `sharing` is that of [`Engine::taking_turns`].
    ///
    /// # Errors
    /// [`EngineError::Uneven`] when the replicas do not have equally many devices;
    /// [`EngineError::Build`], and [`EngineError::Placement`] of any replica, as in
    /// [`Engine::new`].
    #[doc(alias = "data parallel")]
    pub fn replicated(
        replicas: usize,
        builders: Vec<StageBuilder<S>>,
        sharing: Option<&Sharing>,
    ) -> Result<Self, EngineError> {
        let devices = builders.len();
        let mesh = Mesh::new(devices / replicas.max(1), replicas);
        if mesh.devices() != devices {
            return Err(EngineError::Uneven { devices, replicas });
        }
        let builders = (0..).map(DeviceId).zip(builders);
        Self::build(mesh, builders.collect(), sharing, None)
    }

    /// Builds an engine of some devices, in increasing order; with a carrier, the other devices are
    /// in other processes.
    pub(super) fn build(
        mesh: Mesh,
        builders: Vec<(DeviceId, StageBuilder<S>)>,
        sharing: Option<&Sharing>,
        carrier: Option<Arc<dyn Carrier<S::Value>>>,
    ) -> Result<Self, EngineError> {
        let (devices, builders): (Vec<_>, Vec<_>) = builders.into_iter().unzip();
        if devices.is_empty() {
            return Err(EngineError::NoDevices);
        }
        let shared = Arc::new(Shared::new(Inboxes::new(devices, mesh), sharing, carrier));
        let mut engine = Self {
            shared,
            threads: Vec::new(),
            placement: Vec::new(),
            observers: Vec::new(),
            patience: None,
            overdue: Vec::new(),
            state: State::Broken,
        };
        let started = engine.start(builders);
        engine.agree_on_start(started)?;
        engine.state = State::Ready;
        Ok(engine)
    }

    fn start(&mut self, builders: Vec<StageBuilder<S>>) -> Result<(), EngineError> {
        for (index, builder) in builders.into_iter().enumerate() {
            let device = self.shared.devices()[index];
            let shared = Arc::clone(&self.shared);
            let thread = Builder::new()
                .name(format!("stage-{device}"))
                .spawn(move || run_worker(index, shared, builder))
                .map_err(|source| EngineError::Thread { device, source })?;
            self.threads.push(thread);
        }
        let built = self.gather(Asked::these(self.shared.devices()))?;
        for (device, reply) in built.in_device_order() {
            match reply {
                Reply::NotBuilt(source) => {
                    return Err(EngineError::Build { device, source });
                }
                Reply::Built(stages, observers) => {
                    self.placement.push(stages);
                    let named = |(stage, observer)| StageObserver {
                        device,
                        stage,
                        observer,
                    };
                    self.observers.extend(observers.into_iter().map(named));
                }
                _ => {}
            }
        }
        self.check_placement()
    }

    /// Sets how long one call of a stage (an action, or another call of the engine) may take before
    /// the caller stops waiting for it; no limit by default. Building of layers is not watched.
    #[doc(alias = "timeout")]
    #[doc(alias = "watchdog")]
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
    }

    /// Number of devices in this process, and so of threads.
    pub fn devices(&self) -> usize {
        self.threads.len()
    }

    /// Runs a whole schedule and waits for its end, in all processes: [`Engine::run`], then
    /// [`Engine::settle`].
    /// `entries` has one value per edge from the caller and micro-batch, in any order, for the
    /// edges that lead to a device of this engine; `step` holds the settings that every stage sees
    /// when the step begins.
    ///
    /// # Errors
    /// [`EngineError::Stage`] for the first failure of a stage; every stage is then stopped and
    /// aborted, and the engine is ready for the next step. [`EngineError::Stalled`] when a stage
    /// does not return in time: the other devices have left the step by then, and the next call
    /// begins by waiting for that stage and undoing the step. [`EngineError::Devices`],
    /// [`EngineError::Stages`] and [`EngineError::Entry`] before anything runs, when the program or
    /// the entries do not fit.
    pub fn step(
        &mut self,
        program: &Arc<Program>,
        step: Arc<S::Step>,
        entries: Vec<Entry<S::Value>>,
    ) -> Result<StepOutcome<S::Value>, EngineError> {
        let ran = self.run(program, step, entries)?;
        let settled = self.settle(ran, Ok(Vec::new()))?;
        Ok(settled.outcome)
    }

    /// Runs a whole schedule on the devices of this process and waits for their end.
    /// [`Engine::settle`], which must be the next call, decides whether the step counts; until then
    /// the engine can do nothing else.
    ///
    /// # Errors
    /// Those of [`Engine::step`], except failures of stages.
    pub fn run(
        &mut self,
        program: &Arc<Program>,
        step: Arc<S::Step>,
        entries: Vec<Entry<S::Value>>,
    ) -> Result<Ran<S::Value>, EngineError> {
        self.ensure_ready()?;
        let fits = self.check_fit(program);
        let sorted = fits.and_then(|()| Ok(entry::sort(program, self.shared.devices(), entries)?));
        let entries = match sorted {
            Ok(entries) => entries,
            Err(error) => return self.agree_on_refusal(error),
        };
        self.state = State::Broken;
        self.launch(program, &step, entries)?;
        drop(step);
        let asked = Asked::these(self.shared.devices()).of_step(program);
        let gathered = self.gather(asked);
        let gathered = match self.or_lose(gathered)?.complete() {
            Ok(gathered) => gathered,
            Err(stalled) => {
                self.abandon(program, &stalled)?;
                return Err(stalled);
            }
        };
        Ok(Ran(gathered.ended()))
    }

    /// Votes with the other processes on whether the step that has just run counts. It counts if it
    /// completed in all processes and all can report its result; otherwise it is undone in all.
    ///
    /// `told` is this process's message, or the error that prevents one. *Returns* the messages of
    /// all processes, in the order of ranks: the vote carries them, without an extra round.
    ///
    /// # Errors
    /// Those of [`Engine::step`]; [`EngineError::Untold`] with this process's own reason.
    pub fn settle(
        &mut self,
        ran: Ran<S::Value>,
        told: anyhow::Result<Vec<u8>>,
    ) -> Result<Settled<S::Value>, EngineError> {
        let result = self.agree_on_step(ran.0, told)?;
        self.state = State::Ready;
        result
    }

    /// Runs `job` with every stage, on the stage's own thread, all devices at once. Returns the
    /// results in the order of stages, then of replicas.
    ///
    /// # Errors
    /// [`EngineError::Stage`] for the first stage, in stage order, whose job fails or panics. The
    /// jobs of the other stages run nevertheless; nothing is aborted.
    pub fn on_each<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut S) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, EngineError> {
        let job = Arc::new(job);
        let results = Arc::new(Mutex::new(Vec::with_capacity(self.stages())));
        let jobs = self.shared.devices().iter().map(|&device| {
            let (job, results) = (Arc::clone(&job), Arc::clone(&results));
            let work = move |stages: &mut DeviceStages<S>| {
                let done = stages.each(|stage, state| job(stage, state));
                let done = done.into_iter().map(|(stage, done)| (stage, device, done));
                results.lock().extend(done);
                // This thread may be the last owner if the caller has stopped waiting.
                discard((job, results));
            };
            (device, Box::new(work) as Job<S>)
        });
        self.run_jobs(jobs.collect())?;
        let mut results = std::mem::take(&mut *results.lock());
        results.sort_by_key(|(stage, device, _)| (*stage, *device));
        let results = results.into_iter();
        let results = results.map(|(_, _, result)| result.map_err(EngineError::Stage));
        results.collect()
    }

    /// Runs `job` with one stage, on that stage's thread; of several copies in this process only
    /// with that of the first replica.
    ///
    /// # Errors
    /// [`EngineError::Stage`] when the job fails or panics,
    /// [`EngineError::NoStage`] when there is no such stage in this process.
    pub fn on_stage<R: Send + 'static>(
        &mut self,
        stage: StageId,
        job: impl FnOnce(&mut S) -> anyhow::Result<R> + Send + 'static,
    ) -> Result<R, EngineError> {
        let missing = || EngineError::NoStage {
            stage,
            stages: self.stages(),
        };
        let device = self.device_of(stage).ok_or_else(missing)?;
        self.on_device(device, stage, job)
    }

    /// Runs `job` with the copy of a stage in `replica`, on that copy's thread.
    ///
    /// # Errors
    /// [`EngineError::Stage`] when the job fails or panics,
    /// [`EngineError::NoCopy`] when there is no such stage of this replica in this process.
    pub fn on_copy<R: Send + 'static>(
        &mut self,
        stage: StageId,
        replica: usize,
        job: impl FnOnce(&mut S) -> anyhow::Result<R> + Send + 'static,
    ) -> Result<R, EngineError> {
        let mesh = self.mesh();
        let device = (self.copies_of(stage)).find(|device| mesh.replica_of(*device) == replica);
        let missing = || EngineError::NoCopy {
            stage,
            replica,
            replicas: mesh.replicas(),
        };
        let device = device.ok_or_else(missing)?;
        self.on_device(device, stage, job)
    }

    fn on_device<R: Send + 'static>(
        &mut self,
        device: DeviceId,
        stage: StageId,
        job: impl FnOnce(&mut S) -> anyhow::Result<R> + Send + 'static,
    ) -> Result<R, EngineError> {
        let result = Arc::new(Mutex::new(None));
        let there = Arc::clone(&result);
        let work = move |stages: &mut DeviceStages<S>| {
            *there.lock() = stages.one(stage, job);
            discard(there);
        };
        self.run_jobs(vec![(device, Box::new(work) as Job<S>)])?;
        let result = result.lock().take();
        result
            .ok_or(EngineError::WorkerLost { device })?
            .map_err(EngineError::Stage)
    }

    pub(super) fn run_jobs(&mut self, jobs: Vec<(DeviceId, Job<S>)>) -> Result<(), EngineError> {
        self.ensure_ready()?;
        self.state = State::Broken;
        let devices: Vec<DeviceId> = jobs.iter().map(|(device, _)| *device).collect();
        let asked = Asked::these(&devices);
        for (device, job) in jobs {
            if let Some(inbox) = self.shared.inboxes.of(device) {
                inbox.post(Message::Command(Command::Job(job)));
            }
        }
        let gathered = self.gather(asked).and_then(|gathered| gathered.complete());
        self.or_lose(gathered)?;
        self.state = State::Ready;
        Ok(())
    }

    fn launch(
        &self,
        program: &Arc<Program>,
        settings: &Arc<S::Step>,
        entries: Vec<Vec<(usize, S::Value)>>,
    ) -> Result<(), EngineError> {
        let epoch = Instant::now();
        if let Some(turns) = &self.shared.turns {
            turns.start(program);
        }
        self.open(program)?;
        for (inbox, values) in self.shared.inboxes.iter().zip(entries) {
            let (program, settings) = (Arc::clone(program), Arc::clone(settings));
            let order = Command::Step(StepCommand {
                program,
                settings,
                epoch,
            });
            let values = values
                .into_iter()
                .map(|(slot, value)| Message::Value { slot, value });
            inbox.post_all(std::iter::once(Message::Command(order)).chain(values));
        }
        Ok(())
    }
}

impl<S: Stage> Drop for Engine<S> {
    fn drop(&mut self) {
        self.leave_others();
        for inbox in self.shared.inboxes.iter() {
            inbox.post(Message::Command(Command::Exit));
        }
        self.take_late_reports();
        for (device, thread) in self.shared.devices().iter().zip(self.threads.drain(..)) {
            // A stalled thread ends by itself if its stage ever returns.
            if !self.overdue.contains(device) {
                // A thread that panicked has already reported it.
                drop(thread.join());
            }
        }
    }
}

impl<S: Stage> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("placement", &self.placement)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
