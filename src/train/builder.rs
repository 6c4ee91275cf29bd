//! Builder of training runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::Plan;
use serde_json::Value;

use super::checkpoints::{Checkpoints, Saving};
use super::error::TrainError;
use super::evaluation::Evaluations;
use super::feed::{IntoFeed, Start};
use super::folder::RunFolder;
use super::hook::{Hook, Hooks};
use super::leader::leads;
use super::outcome::{Outcome, Rates};
use super::report::ReportFormat;
use super::resume::{Resume, ResumeOptions};
use super::step::{Settings, SharedLoss};
use super::stop::Stop;
use super::trainer::Trainer;
use super::writer::{RunWriter, missing};
use gpipe_torch::{LossFn, LrSchedule, Optimizer, Pipeline};

/// Builder of a run; [`Trainer::builder`] makes it.
///
/// Model, partition, schedule, precision and memory are set on the [pipeline](gpipe_torch::Pipeline),
/// kinds of update on the [optimizer](gpipe_torch::Optimizer), order and loading of batches on the
/// [data](gpipe_data).
#[derive(Debug)]
#[must_use]
pub struct TrainerBuilder<'a> {
    pipe: &'a mut Pipeline,
    optimizer: &'a mut Optimizer,
    batches: Start<'a>,
    loss: SharedLoss,
    held_out: Option<Start<'a>>,
    evaluations: Evaluations<'a>,
    settings: Settings,
    rates: Rates,
    folder: Option<PathBuf>,
    resume: bool,
    opened: Option<Resume>,
    report: Option<PathBuf>,
    every: usize,
    keep: usize,
    config: Option<String>,
    parts: Vec<(String, Value)>,
    hooks: Hooks<'a>,
    stop: Stop,
    signals: bool,
}

impl<'a> Trainer<'a> {
    /// Makes a run of a pipeline, with an optimizer, batches and a loss function.
    ///
    /// By default it trains to the end of the data at the optimizer's learning rate, in the next free
    /// folder under `runs`, and saves a checkpoint every 100 steps.
    pub fn builder(
        pipe: &'a mut Pipeline,
        optimizer: &'a mut Optimizer,
        batches: impl IntoFeed<Feed: 'a> + 'a,
        loss: impl LossFn,
    ) -> TrainerBuilder<'a> {
        TrainerBuilder {
            pipe,
            optimizer,
            batches: Start::new(batches),
            loss: SharedLoss(Arc::new(loss)),
            held_out: None,
            evaluations: Evaluations::none(),
            settings: Settings::default(),
            rates: Rates::default(),
            folder: None,
            resume: false,
            opened: None,
            report: None,
            every: 100,
            keep: 3,
            config: None,
            parts: Vec::new(),
            hooks: Hooks::default(),
            stop: Stop::new(),
            signals: false,
        }
    }
}

impl<'a> TrainerBuilder<'a> {
    /// Sets the total number of steps, including those of a resumed run; by default until the data
    /// ends. The last step is compared with its prediction only if this is set.
    pub fn steps(mut self, steps: usize) -> Self {
        self.settings.steps = Some(steps);
        self
    }

    /// Sets the learning-rate schedule; by default the optimizer's own rate.
    pub fn lr(mut self, rates: LrSchedule) -> Self {
        self.settings.lr = Some(rates);
        self
    }

    /// Clips gradients to this total 2-norm.
    pub fn clip(mut self, norm: impl Into<Option<f64>>) -> Self {
        self.settings.clip = norm.into();
        self
    }

    /// Evaluates the mean loss on held-out data after all steps. See also
    /// [`TrainerBuilder::evaluate_every`].
    pub fn held_out(mut self, batches: impl IntoFeed<Feed: 'a> + 'a) -> Self {
        self.held_out = Some(Start::new(batches));
        self
    }

    /// Evaluates the mean loss on held-out data every so many steps, and after the last one; `data`
    /// restarts its batches each time. Evaluations do not change a bit of the training.
    ///
    /// The loss is recorded in the step's metrics. The run is saved after each evaluation better than
    /// all before, unless saving is off; the checkpoint of the best one is kept beside the newest ones,
    /// and [`BEST`](super::BEST) in the run folder names it.
    pub fn evaluate_every<D>(mut self, steps: usize, data: impl FnMut() -> D + 'a) -> Self
    where
        D: IntoFeed<Feed: 'a> + 'a,
    {
        self.evaluations.on(steps, data);
        self
    }

    /// Also measures a classifier's accuracy in each evaluation: the share of targets that equal the
    /// class of the largest output. Targets equal to `ignored` do not count.
    pub fn accuracy(mut self, ignored: i64) -> Self {
        self.settings.accuracy = Some(ignored);
        self
    }

    /// Ends the run after so many consecutive evaluations without a better one; by default it continues
    /// to its last step. For [`TrainerBuilder::evaluate_every`].
    #[doc(alias = "patience")]
    pub fn early_stopping(mut self, evaluations: impl Into<Option<usize>>) -> Self {
        self.evaluations.patience = evaluations.into();
        self
    }

    /// Sets the run's folder, which must not hold a run unless resuming; by default the next free
    /// number under `runs`.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Whether to resume the run in the folder from its newest checkpoint, with the same bits as an
    /// uninterrupted run if model, data, optimizer, micro-batches and threads per stage are the same. A
    /// run without a checkpoint restarts. The caller must make sure that the setup is the same: see
    /// [`TrainerBuilder::config`].
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Resumes a run that is already open, for example to read its configuration, or to continue in
    /// another folder.
    pub fn resume_opened(mut self, resume: Resume) -> Self {
        self.opened = Some(resume);
        self
    }

    /// Sets the number of steps between checkpoints, 100 by default; 0 saves nothing. Otherwise the run
    /// is also saved at its end.
    pub fn checkpoint_every(mut self, steps: usize) -> Self {
        self.every = steps;
        self
    }

    /// Sets the number of checkpoints kept, 3 by default.
    pub fn checkpoint_keep(mut self, keep: usize) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the text of `config.toml`, which is also saved in each checkpoint: the caller's settings in
    /// any format. The library does not interpret it; [`Resume::config`] returns it. A resumed run
    /// keeps its own unless this is set.
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = Some(text.into());
        self
    }

    /// Saves the state of a part of the program in each checkpoint, among its
    /// [`Extras`](crate::checkpoint::Extras).
    pub fn part(mut self, name: impl Into<String>, state: impl Into<Value>) -> Self {
        self.parts.push((name.into(), state.into()));
        self
    }

    /// Adds a hook that is notified of progress; hooks are called in the order of adding.
    pub fn hook(mut self, hook: impl Hook + 'a) -> Self {
        self.hooks.add(hook);
        self
    }

    /// Ends the run after the step in which `stop` is requested.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// Ends the run after the current step at Ctrl-C, SIGTERM or SIGHUP, and the process at the second
    /// signal; until the folder is in place, the first signal ends the process. See
    /// [`Stop::on_signals`].
    pub fn stop_on_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Sets the number of tokens per sample, to report tokens per second.
    pub fn tokens_per_sample(mut self, tokens: impl Into<Option<usize>>) -> Self {
        self.rates.tokens = tokens.into();
        self
    }

    /// Sets the number of samples per epoch of finite data, to report epochs.
    pub fn samples_per_epoch(mut self, samples: impl Into<Option<usize>>) -> Self {
        self.rates.epoch = samples.into().filter(|samples| *samples > 0);
        self
    }

    /// Sets the operations per sample (forward and backward, without recomputing) and the peak
    /// operations per second of all devices, to report the model FLOP/s utilisation.
    pub fn flops(mut self, of_sample_and_peak: impl Into<Option<(f64, f64)>>) -> Self {
        self.rates.flops = of_sample_and_peak.into();
        self
    }

    /// Sets the pipeline's plan, to report its prediction beside the measurements.
    pub fn plan(mut self, plan: impl Into<Option<Plan>>) -> Self {
        self.settings.plan = plan.into();
        self
    }

    /// Sets the model's name for the title of the [report](TrainerBuilder::report).
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.settings.model = Some(name.into());
        self
    }

    /// Also writes a comparison of the last step with its prediction: an HTML page (`.html`) or a
    /// picture (`.svg`).
    pub fn report(mut self, path: impl Into<PathBuf>) -> Self {
        self.report = Some(path.into());
        self
    }

    /// Also writes the last step's timeline in Chrome's trace format, outside the run folder.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.files.trace = Some(path.into());
        self
    }

    /// Creates the run folder; or truncates it to the checkpoint, and restores pipeline, optimizer and
    /// data.
    ///
    /// # Errors
    /// The folder is not usable, there is nothing to resume, or model or data do not fit.
    pub fn build(mut self) -> Result<Trainer<'a>, TrainError> {
        self.check()?;
        let resume = match (self.opened.take(), self.resume) {
            (Some(opened), _) => Some(opened),
            (None, true) => Some(self.open()?),
            (None, false) => None,
        };
        let done = resume.as_ref().map_or(0, Resume::step) as usize;
        let standing = resume.as_ref().map(Resume::standing).transpose()?;
        let standing = standing.unwrap_or_default();
        self.evaluations.standing = standing.clone();
        let data = resume.as_ref().map(Resume::data).transpose()?.flatten();
        let batches = self.batches.start(data).map_err(TrainError::Data)?;
        let saving = Saving {
            every: self.every,
            keep: self.keep,
            config: self.config.unwrap_or_default(),
            parts: self.parts,
        };
        let (pipe, optimizer, hooks) = (self.pipe, self.optimizer, &mut self.hooks);
        let (writer, checkpoints) = if let Some(resume) = resume {
            resume.restore(pipe, optimizer)?;
            // From then on, the new folder does not depend on the old one.
            resume.begin(saving, pipe, hooks, |checkpoints, pipe, hooks| {
                if done == 0 || !checkpoints.due(done, true) {
                    return Ok(());
                }
                let state = (batches.0.state(), standing);
                checkpoints.save_first(pipe, optimizer, done, state, hooks)
            })?
        } else {
            let (folder, writer) = RunFolder::claim(self.folder.as_deref(), pipe)?;
            let folder = if leads(pipe) {
                RunWriter::create(folder, &saving.config)?
            } else {
                RunWriter::elsewhere(folder)
            };
            (folder, Checkpoints::new(writer, saving, None, leads(pipe)))
        };
        let records = if writer.is_here() {
            writer.folder.records()?
        } else {
            Vec::new()
        };
        if let Some(missing) = missing(&records, done as u64).filter(|_| writer.is_here()) {
            hooks.warning(&missing);
        }
        let stop = if self.signals {
            self.stop.and_signals().map_err(TrainError::Signals)?
        } else {
            self.stop
        };
        let stop = stop.and_others(pipe.stop_line());
        let seen = records.last().map_or(0, |last| last.samples);
        let mut outcome = Outcome::new(writer.folder.path().to_owned(), records);
        outcome.run_by(pipe, self.settings.plan.as_ref())?;
        outcome.rates = self.rates;
        Ok(Trainer {
            pipe,
            optimizer,
            loss: self.loss,
            batches,
            held_out: self.held_out,
            evaluations: self.evaluations,
            settings: self.settings,
            hooks: self.hooks,
            stop,
            writer,
            checkpoints,
            done,
            before: done,
            seems_uneven: false,
            seen,
            pending: None,
            outcome,
            read: Instant::now(),
            told: Instant::now(),
            begun: None,
            nonfinite_streak: 0,
            skipped: 0,
        })
    }

    /// Checks settings for conflicts, and the requested files.
    fn check(&mut self) -> Result<(), TrainError> {
        if self.settings.steps == Some(0) {
            let why = "a run of 0 steps: it has at least 1".to_owned();
            return Err(TrainError::Settings(why));
        }
        let refused = |why: &str| Err(TrainError::Settings(why.to_owned()));
        match (self.evaluations.are_on(), self.evaluations.every) {
            (true, 0) => return refused("an evaluation after every 0 steps: take at least 1"),
            (false, _) if self.evaluations.patience.is_some() => {
                return refused("early stopping needs evaluations: say evaluate_every, too");
            }
            _ => {}
        }
        if self.evaluations.patience == Some(0) {
            return refused("early stopping after 0 evaluations: take at least 1");
        }
        if let Some(path) = self.report.take() {
            let format = ReportFormat::of(&path);
            let format =
                format.map_err(|why| TrainError::Settings(format!("{}: {why}", path.display())))?;
            self.settings.files.report = Some((path, format));
        }
        Ok(())
    }

    /// Opens the resumed run, and reports notes about it.
    fn open(&mut self) -> Result<Resume, TrainError> {
        let folder = self.folder.as_ref().ok_or_else(|| {
            TrainError::Settings("a run is resumed in its own folder: name it".to_owned())
        })?;
        let hooks = &mut self.hooks;
        let options = ResumeOptions::default().world(self.pipe.world());
        let resume = Resume::open(folder, &options, &mut |damaged| hooks.warning(damaged))?;
        resume.check_unsaved(Some(self.every as u64))?;
        match resume.repeated() {
            0 => hooks.note(&resume.note()),
            _ => hooks.warning(&resume.note()),
        }
        if self.config.is_none() {
            self.config = Some(resume.config().1.to_owned());
        }
        Ok(resume)
    }
}
