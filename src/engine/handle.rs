//! The engine as its owner sees it.

use super::device_stages::DeviceStages;
use super::entry::{self, Entry, StepOutcome};
use super::failure::{EngineError, discard};
use super::gather::Gathered;
use super::inboxes::Inboxes;
use super::message::{Command, Job, Message, Reply, StepCommand};
use super::part::Others;
use super::program::Program;
use super::shared::Shared;
use super::sharing::Sharing;
use super::stage::{Observer, Stage};
use super::state::{Asked, State};
use super::sync::{Builder, JoinHandle, Mutex};
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
    /// For each stage that has one, what names the layer that it runs.
    pub(super) observers: Vec<(StageId, Observer)>,
    pub(super) patience: Option<Duration>,
    /// Stalled devices, whose report the last call did not wait for.
    pub(super) overdue: Vec<DeviceId>,
    pub(super) state: State,
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
        Self::build(numbered(builders), None, None)
    }

    /// As [`Engine::new`], for devices that have to take turns because they share too few
    /// cores: of those that could run an action, the ones whose next action is the most
    /// [urgent](gpipe_partitioner::urgencies) do. The timeline counts an action from its
    /// turn on.
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn taking_turns(
        builders: Vec<StageBuilder<S>>,
        sharing: &Sharing,
    ) -> Result<Self, EngineError> {
        Self::build(numbered(builders), Some(sharing), None)
    }

    /// Builds an engine of some devices, in increasing order.
    pub(super) fn build(
        builders: Vec<(DeviceId, StageBuilder<S>)>,
        sharing: Option<&Sharing>,
        others: Option<Others<S::Value>>,
    ) -> Result<Self, EngineError> {
        let (devices, builders): (Vec<_>, Vec<_>) = builders.into_iter().unzip();
        let all = others
            .as_ref()
            .map_or(devices.len(), |others| others.devices);
        let carrier = others.map(|others| others.carrier);
        if devices.is_empty() {
            return Err(EngineError::NoDevices);
        }
        let shared = Arc::new(Shared::new(Inboxes::new(devices, all), sharing, carrier));
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
                    self.observers.extend(observers);
                }
                _ => {}
            }
        }
        check_placement(&self.placement, self.shared.carrier.is_some())
    }

    /// Sets how long one call of a stage (an action, or another call of the engine) may take
    /// before the caller stops waiting for it; by default there is no limit. Layers that are
    /// being built are not watched.
    #[doc(alias = "timeout")]
    #[doc(alias = "watchdog")]
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
    }

    /// Number of devices in this process, and so of threads.
    pub fn devices(&self) -> usize {
        self.threads.len()
    }

    /// Number of stages on all of these devices together.
    pub fn stages(&self) -> usize {
        self.placement.iter().map(Vec::len).sum()
    }

    /// The device of `stage`, if there is such a stage in this process.
    pub fn device_of(&self, stage: StageId) -> Option<DeviceId> {
        self.placement
            .iter()
            .position(|here| here.contains(&stage))
            .map(|index| self.shared.devices()[index])
    }

    /// Runs a whole schedule and waits for its end.
    ///
    /// `entries` has one value per edge from the caller and micro-batch, in any
    /// order, of the edges that lead to a device of this engine; `step` is what every stage
    /// gets to see when the step begins.
    ///
    /// # Errors
    /// [`EngineError::Stage`] when a stage fails: the first failure, with every
    /// stage stopped and aborted, and the engine ready for the next step.
    /// [`EngineError::Stalled`] when a stage does not come back in time: the other devices have
    /// left the step by then, and the next call begins by waiting for that stage and undoing
    /// the step. [`EngineError::Devices`], [`EngineError::Stages`] and
    /// [`EngineError::Entry`] before anything runs, when the program or the
    /// entries do not fit.
    pub fn step(
        &mut self,
        program: &Arc<Program>,
        step: Arc<S::Step>,
        entries: Vec<Entry<S::Value>>,
    ) -> Result<StepOutcome<S::Value>, EngineError> {
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
        let result = self.agree_on_step(gathered.ended())?;
        self.state = State::Ready;
        result
    }

    /// Runs `job` with every stage, each on its own thread, all devices at once.
    /// Returns the results in the order of the stages.
    ///
    /// # Errors
    /// [`EngineError::Stage`] for the first stage, in stage order, whose job fails
    /// or panics. The others run theirs all the same; nothing is aborted.
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
                results.lock().extend(done);
                // The last owner, where the caller has stopped waiting.
                discard((job, results));
            };
            (device, Box::new(work) as Job<S>)
        });
        self.run_jobs(jobs.collect())?;
        let mut results = std::mem::take(&mut *results.lock());
        results.sort_by_key(|(stage, _)| *stage);
        let results = results
            .into_iter()
            .map(|(_, result)| result.map_err(EngineError::Stage));
        results.collect()
    }

    /// Runs `job` with one stage, on that stage's thread.
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
        let gathered = self.gather(asked).and_then(Gathered::complete);
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

    fn check_fit(&self, program: &Program) -> Result<(), EngineError> {
        let schedule = || program.schedule().schedule().name().to_owned();
        let (wanted, present) = (program.devices(), self.shared.inboxes.all_devices());
        if wanted != present {
            return Err(EngineError::Devices {
                schedule: schedule(),
                wanted,
                present,
            });
        }
        for (&device, present) in self.shared.devices().iter().zip(&self.placement) {
            let wanted = &program.device(device).stages;
            if wanted != present {
                let plain = |stages: &[StageId]| stages.iter().map(|s| s.index()).collect();
                let (wanted, present) = (plain(wanted), plain(present));
                return Err(EngineError::Stages {
                    schedule: schedule(),
                    device,
                    wanted,
                    present,
                });
            }
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
            // A stalled one ends by itself, should it ever come back.
            if !self.overdue.contains(device) {
                // A thread that panicked has said so by its report.
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

/// In order: device 0, 1, 2, …
fn numbered<S>(builders: Vec<StageBuilder<S>>) -> Vec<(DeviceId, StageBuilder<S>)> {
    let devices = (0..).map(DeviceId);
    devices.zip(builders).collect()
}

/// Where stages may be in other processes, those here are not there twice.
fn check_placement(placement: &[Vec<StageId>], elsewhere: bool) -> Result<(), EngineError> {
    let stages = placement.iter().map(Vec::len).sum();
    let here = placement.iter().flatten().copied();
    let wanted: Vec<StageId> = if elsewhere {
        here.collect()
    } else {
        (0..stages).map(StageId).collect()
    };
    for stage in wanted {
        let times = placement
            .iter()
            .flatten()
            .filter(|present| **present == stage)
            .count();
        if times != 1 {
            return Err(EngineError::Placement {
                stage,
                times,
                stages,
            });
        }
    }
    Ok(())
}
