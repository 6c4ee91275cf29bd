//! The engine as its owner sees it.

use super::crew::Crew;
use super::entry::{self, Entry, Outcome, Values};
use super::failure::{EngineError, StageError, discard};
use super::message::{Job, Lines, Message, News, Order, Record, Report, Sharing, StepOrder};
use super::patience::Patience;
use super::program::Program;
use super::stage::Stage;
use super::sync::{Builder, JoinHandle, Mutex};
use super::worker::{StageBuilder, live};
use gpipe_partitioner::{DeviceId, StageId};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Runs checked schedules over stages, one long-lived thread per device.
///
/// Dropping it drops the stages, each on its own thread, and joins the threads.
pub struct Engine<S: Stage> {
    lines: Arc<Lines<S>>,
    threads: Vec<JoinHandle<()>>,
    /// The stages of each device, in increasing order.
    placement: Vec<Vec<StageId>>,
    /// No call was left half-done.
    usable: bool,
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
        Self::build(builders, None)
    }

    /// The same where some devices have to take turns: of those that could work, the ones
    /// whose next action is the most [urgent](gpipe_partitioner::urgencies) do. The
    /// timeline counts an action from when its turn comes.
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn taking_turns(
        builders: Vec<StageBuilder<S>>,
        sharing: &Sharing,
    ) -> Result<Self, EngineError> {
        Self::build(builders, Some(sharing))
    }

    fn build(
        builders: Vec<StageBuilder<S>>,
        sharing: Option<&Sharing>,
    ) -> Result<Self, EngineError> {
        if builders.is_empty() {
            return Err(EngineError::NoDevices);
        }
        let lines = Arc::new(Lines::new(builders.len(), sharing));
        let mut engine = Self {
            lines,
            threads: Vec::new(),
            placement: Vec::new(),
            usable: false,
        };
        engine.start(builders)?;
        engine.usable = true;
        Ok(engine)
    }

    fn start(&mut self, builders: Vec<StageBuilder<S>>) -> Result<(), EngineError> {
        for (index, builder) in builders.into_iter().enumerate() {
            let device = DeviceId(index);
            let lines = Arc::clone(&self.lines);
            let thread = Builder::new()
                .name(format!("stage-{device}"))
                .spawn(move || live(device, lines, builder))
                .map_err(|source| EngineError::Thread { device, source })?;
            self.threads.push(thread);
        }
        for (index, news) in self.gather(self.threads.len())?.in_device_order() {
            match news {
                News::NotBuilt(source) => {
                    return Err(EngineError::Build {
                        device: DeviceId(index),
                        source,
                    });
                }
                News::Built(stages) => self.placement.push(stages),
                _ => {}
            }
        }
        check_placement(&self.placement)
    }

    /// Number of devices, and so of threads.
    pub fn devices(&self) -> usize {
        self.threads.len()
    }

    /// Number of stages on all devices together.
    pub fn stages(&self) -> usize {
        self.placement.iter().map(Vec::len).sum()
    }

    /// The device of `stage`, if there is such a stage.
    pub fn device_of(&self, stage: StageId) -> Option<DeviceId> {
        self.placement
            .iter()
            .position(|here| here.contains(&stage))
            .map(DeviceId)
    }

    /// Runs a whole schedule and waits for its end.
    ///
    /// `entries` has one value per edge from the caller and micro-batch, in any
    /// order; `step` is what every stage gets to see when the step begins.
    ///
    /// # Errors
    /// [`EngineError::Stage`] when a stage fails: the first failure, with every
    /// stage stopped and aborted, and the engine ready for the next step.
    /// [`EngineError::Devices`], [`EngineError::Stages`] and
    /// [`EngineError::Entry`] before anything runs, when the program or the
    /// entries do not fit.
    pub fn step(
        &mut self,
        program: &Arc<Program>,
        step: Arc<S::Step>,
        entries: Vec<Entry<S::Value>>,
    ) -> Result<Outcome<S::Value>, EngineError> {
        self.check_usable()?;
        self.check_fit(program)?;
        let entries = entry::sort(program, entries)?;
        self.usable = false;
        self.launch(program, &step, entries);
        drop(step);
        let news = self.gather(self.devices())?;
        let result = match news.outcome() {
            Ok(outcome) => Ok(outcome),
            Err(first) => Err(self.abort(first)?),
        };
        self.usable = true;
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
        let jobs = (0..self.devices()).map(|device| {
            let (job, results) = (Arc::clone(&job), Arc::clone(&results));
            let work = move |crew: &mut Crew<S>| {
                let done = crew.each(|stage, state| job(stage, state));
                results.lock().extend(done);
            };
            (DeviceId(device), Box::new(work) as Job<S>)
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
    /// [`EngineError::NoStage`] when there is no such stage.
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
        let work = move |crew: &mut Crew<S>| *there.lock() = crew.one(stage, job);
        self.run_jobs(vec![(device, Box::new(work) as Job<S>)])?;
        let result = result.lock().take();
        result
            .ok_or(EngineError::WorkerLost { device })?
            .map_err(EngineError::Stage)
    }

    pub(super) fn run_jobs(&mut self, jobs: Vec<(DeviceId, Job<S>)>) -> Result<(), EngineError> {
        self.check_usable()?;
        self.usable = false;
        let count = jobs.len();
        for (device, job) in jobs {
            self.lines
                .inbox(device)
                .post(Message::Order(Order::Job(job)));
        }
        self.gather(count)?;
        self.usable = true;
        Ok(())
    }

    fn launch(
        &self,
        program: &Arc<Program>,
        settings: &Arc<S::Step>,
        entries: Vec<Vec<(usize, S::Value)>>,
    ) {
        let epoch = Instant::now();
        if let Some(turns) = &self.lines.turns {
            turns.start(program);
        }
        for (inbox, values) in self.lines.inboxes.iter().zip(entries) {
            let (program, settings) = (Arc::clone(program), Arc::clone(settings));
            let order = Order::Step(StepOrder {
                program,
                settings,
                epoch,
            });
            let values = values
                .into_iter()
                .map(|(slot, value)| Message::Value { slot, value });
            inbox.post_all(std::iter::once(Message::Order(order)).chain(values));
        }
    }

    /// Lets every stage undo a failed step, which every worker has left.
    fn abort(&mut self, first: StageError) -> Result<EngineError, EngineError> {
        for inbox in &self.lines.inboxes {
            inbox.post(Message::Order(Order::Abort));
        }
        let news = self.gather(self.devices())?;
        let failures = news.in_device_order().flat_map(|(_, news)| match news {
            News::Aborted(failures) => failures,
            _ => Vec::new(),
        });
        Ok(match failures.min_by_key(|failure| failure.stage) {
            Some(abort) => EngineError::Abort {
                first,
                abort: Box::new(abort),
            },
            None => EngineError::Stage(first),
        })
    }

    /// Waits for `count` reports.
    fn gather(&self, count: usize) -> Result<Gathered<S::Value>, EngineError> {
        let mut reports = Vec::with_capacity(count);
        let mut batch = Vec::new();
        while reports.len() < count {
            self.lines.reports.wait(&mut batch, Patience::NONE);
            for report in batch.drain(..) {
                if let News::Lost = report.news {
                    self.lines.stop_all_but(report.device);
                    return Err(EngineError::WorkerLost {
                        device: report.device,
                    });
                }
                reports.push(report);
            }
        }
        Ok(Gathered(reports))
    }

    fn check_usable(&self) -> Result<(), EngineError> {
        if self.usable {
            Ok(())
        } else {
            Err(EngineError::Broken)
        }
    }

    fn check_fit(&self, program: &Program) -> Result<(), EngineError> {
        let schedule = || program.schedule().schedule().name().to_owned();
        if program.devices() != self.devices() {
            let (wanted, present) = (program.devices(), self.devices());
            return Err(EngineError::Devices {
                schedule: schedule(),
                wanted,
                present,
            });
        }
        for (index, present) in self.placement.iter().enumerate() {
            let device = DeviceId(index);
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
        for inbox in &self.lines.inboxes {
            inbox.post(Message::Order(Order::Exit));
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so by its report.
            drop(thread.join());
        }
    }
}

impl<S: Stage> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("placement", &self.placement)
            .field("usable", &self.usable)
            .finish_non_exhaustive()
    }
}

fn check_placement(placement: &[Vec<StageId>]) -> Result<(), EngineError> {
    let stages = placement.iter().map(Vec::len).sum();
    for stage in (0..stages).map(StageId) {
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

/// One report from every worker that was asked, in order of arrival.
struct Gathered<V>(Vec<Report<V>>);

impl<V> Gathered<V> {
    fn in_device_order(mut self) -> impl Iterator<Item = (usize, News<V>)> {
        self.0.sort_by_key(|report| report.device);
        self.0
            .into_iter()
            .map(|report| (report.device.index(), report.news))
    }

    /// What the step brought, or its first failure.
    fn outcome(mut self) -> Result<Outcome<V>, StageError> {
        let failed = |report: &Report<V>| matches!(report.news, News::Failed(_));
        if let Some(first) = self.0.iter().position(failed)
            && let News::Failed(error) = self.0.swap_remove(first).news
        {
            discard(self);
            return Err(error);
        }
        let (mut exits, mut gradients, mut events) = (Values::new(), Values::new(), Vec::new());
        for (_, news) in self.in_device_order() {
            let News::Finished(Record {
                exits: values,
                events: log,
            }) = news
            else {
                continue;
            };
            for (exit, value) in values {
                let side = if exit.gradient {
                    &mut gradients
                } else {
                    &mut exits
                };
                side.insert((exit.edge, exit.micro), value);
            }
            events.push(log);
        }
        Ok(Outcome {
            timeline: entry::timeline(&events),
            exits,
            gradients,
            events,
        })
    }
}
