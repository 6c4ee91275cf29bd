//! What a run is made of.

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

/// Everything that can be chosen about a run; [`Trainer::builder`] begins.
///
/// Model, partition, schedule, precision and memory are the [pipeline's](gpipe_torch::Pipeline),
/// kinds of update the [optimizer's](gpipe_torch::Optimizer), order and loading of batches the
/// [data's](gpipe_data).
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
    /// A run of a pipeline that an optimizer updates, on these batches, by this loss function.
    ///
    /// Without more it trains to the end of the data at the optimizer's learning rate, in the
    /// next free folder under `runs`, and saves itself after every 100 steps.
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
    /// Steps in all, those of a resumed run with them; by default until the data ends. Only
    /// where it is known which step is the last is that compared with its prediction.
    pub fn steps(mut self, steps: usize) -> Self {
        self.settings.steps = Some(steps);
        self
    }

    /// The learning rate of each step; by default the optimizer's own.
    pub fn lr(mut self, rates: LrSchedule) -> Self {
        self.settings.lr = Some(rates);
        self
    }

    /// Scales gradients down whose 2-norm, all together, is larger.
    pub fn clip(mut self, norm: impl Into<Option<f64>>) -> Self {
        self.settings.clip = norm.into();
        self
    }

    /// Data that was never trained on: its mean loss is measured when all steps are done. See
    /// [`TrainerBuilder::evaluate_every`], too.
    pub fn held_out(mut self, batches: impl IntoFeed<Feed: 'a> + 'a) -> Self {
        self.held_out = Some(Start::new(batches));
        self
    }

    /// Measures the mean loss on data that was never trained on after every so many steps, and after
    /// the last one; `data` begins its batches anew each time. Training is none the other for it:
    /// its bits are the same with evaluations and without.
    ///
    /// The loss stands in the metrics of the step. The run is saved after each evaluation that is
    /// better than all before, where it is saved at all; the checkpoint of the best one stays
    /// beside the newest ones, and [`BEST`](super::BEST) in the run folder names it.
    pub fn evaluate_every<D>(mut self, steps: usize, data: impl FnMut() -> D + 'a) -> Self
    where
        D: IntoFeed<Feed: 'a> + 'a,
    {
        self.evaluations.on(steps, data);
        self
    }

    /// Measures the accuracy of a classifier, too, wherever its loss on held-out data is measured: the
    /// share of targets that are the class of the largest output. Targets of the number `ignored` do
    /// not count.
    pub fn accuracy(mut self, ignored: i64) -> Self {
        self.settings.accuracy = Some(ignored);
        self
    }

    /// Ends the run after so many evaluations in a row that were not better than the best one; by
    /// default it goes on to its last step. For [`TrainerBuilder::evaluate_every`].
    #[doc(alias = "patience")]
    pub fn early_stopping(mut self, evaluations: impl Into<Option<usize>>) -> Self {
        self.evaluations.patience = evaluations.into();
        self
    }

    /// The run's folder. That of a new run must not hold one; by default it is the next free
    /// number under `runs`.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Whether the run in the folder is resumed from its newest checkpoint: with the same bits as
    /// if nothing had been interrupted where model, data, optimizer, micro-batches and threads
    /// per stage are the same. Stopped before its first checkpoint it begins anew. What is to be
    /// the same is for the caller to see to: see [`TrainerBuilder::config`].
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Resumes a run that was opened before, as one does to look at its configuration, or to go
    /// on in another folder.
    pub fn resume_opened(mut self, resume: Resume) -> Self {
        self.opened = Some(resume);
        self
    }

    /// Steps between two checkpoints, 100 by default; 0 saves nothing. A run that is saved at
    /// all is saved at its end, too.
    pub fn checkpoint_every(mut self, steps: usize) -> Self {
        self.every = steps;
        self
    }

    /// How many checkpoints are kept, 3 by default.
    pub fn checkpoint_keep(mut self, keep: usize) -> Self {
        self.keep = keep;
        self
    }

    /// What is written to `config.toml` and into each checkpoint: the caller's own settings, in
    /// whatever words. The library reads and compares none of it; [`Resume::config`] gives it
    /// back. A resumed run keeps its own where none is given.
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = Some(text.into());
        self
    }

    /// What one part of the program wants kept in each checkpoint; it is found among its
    /// [`Extras`](crate::checkpoint::Extras).
    pub fn part(mut self, name: impl Into<String>, state: impl Into<Value>) -> Self {
        self.parts.push((name.into(), state.into()));
        self
    }

    /// Who is told how the run gets on; several are told in this order.
    pub fn hook(mut self, hook: impl Hook + 'a) -> Self {
        self.hooks.add(hook);
        self
    }

    /// Ends the run after the step in which this is asked to.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// Ends the run after the step in which Ctrl-C, SIGTERM or SIGHUP comes, and the process
    /// at the second one; until the folder is in its place the first one does. See
    /// [`Stop::on_signals`].
    pub fn stop_on_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Tokens of a sample that is a sequence of them: metrics then have tokens per second.
    pub fn tokens_per_sample(mut self, tokens: impl Into<Option<usize>>) -> Self {
        self.rates.tokens = tokens.into();
        self
    }

    /// Samples of an epoch, of data that has an end: metrics then say how many epochs were trained
    /// on.
    pub fn samples_per_epoch(mut self, samples: impl Into<Option<usize>>) -> Self {
        self.rates.epoch = samples.into().filter(|samples| *samples > 0);
        self
    }

    /// Operations that a sample takes, forward and backward and nothing twice, and the
    /// operations per second that all devices together can do: metrics then have the model
    /// FLOP/s utilisation.
    pub fn flops(mut self, of_sample_and_peak: impl Into<Option<(f64, f64)>>) -> Self {
        self.rates.flops = of_sample_and_peak.into();
        self
    }

    /// The plan that the pipeline was made by, to be told beside what was measured.
    pub fn plan(mut self, plan: impl Into<Option<Plan>>) -> Self {
        self.settings.plan = plan.into();
        self
    }

    /// What the model is called in the title of the [report](TrainerBuilder::report).
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.settings.model = Some(name.into());
        self
    }

    /// Where to write the last step beside its prediction, besides the outcome: a page (`.html`)
    /// or a picture (`.svg`).
    pub fn report(mut self, path: impl Into<PathBuf>) -> Self {
        self.report = Some(path.into());
        self
    }

    /// Where to write the last step's timeline in Chrome's trace format, besides the run
    /// folder.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.files.trace = Some(path.into());
        self
    }

    /// Makes the run folder, or cuts it off after the checkpoint and restores pipeline,
    /// optimizer and data from it.
    ///
    /// # Errors
    /// The folder cannot be had, there is nothing to resume, model or data do not fit.
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
            // From then on the new folder needs the old one no more.
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

    /// What fits together, and the files that are asked for.
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

    /// Opens the run that is resumed, and tells what there is to say of it.
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
