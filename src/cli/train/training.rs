//! Step after step, to the last one or until somebody stops it.

use std::time::Instant;

use gpipe_partitioner::{CheckedSchedule, render};

use super::checkpoints::Checkpoints;
use super::cut;
use super::graphs::Untold;
use super::job::Job;
use super::options::Args;
use super::outcome::Outcome;
use super::progress::Progress;
use super::report::Comparison;
use super::resolved::Resolved;
use super::resume::TakenUp;
use super::run_folder::{self, RunFolder};
use super::signals::Stop;
use super::step::{self, Trained};
use super::{Failure, failure};
use crate::cli::feed::Feed;
use crate::cli::{output, say};
use crate::profile::others::Moment;
use crate::{Optimizer, Pipeline, StepReport};

/// A run on its way.
#[derive(Debug)]
pub(super) struct Training<'a> {
    job: &'a Job,
    optimizer: Optimizer,
    folder: RunFolder,
    checkpoints: Checkpoints,
    batches: Feed,
    outcome: Outcome,
    /// Steps that have been done.
    done: usize,
    /// The last of them, while its numbers are not there: see [`Training::step`].
    behind: Option<Behind>,
    /// When the numbers of a step were last read.
    read: Instant,
    /// When the first of its steps began, by the clocks of the machine's cores.
    begun: Option<Moment>,
    /// Layers of each stage.
    balance: Vec<usize>,
    /// The last ones in a row whose loss was not finite.
    astray: usize,
}

/// A step that the host is ahead of.
#[derive(Debug)]
struct Behind {
    trained: Trained,
    /// Of the last step: what it ran.
    schedule: Option<CheckedSchedule>,
}

/// So many skipped steps in a row whose loss is not finite end a run: that no smaller loss
/// scale heals, while one alone may be a strange batch.
const ASTRAY: usize = 3;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    AllDone,
    /// By a signal, after this step.
    Stopped {
        step: usize,
    },
}

impl<'a> Training<'a> {
    /// Makes the run folder, or goes on in it.
    pub(super) fn begin(
        job: &'a Job,
        pipe: &mut Pipeline,
        resolved: &Resolved,
        taken_up: Option<TakenUp>,
    ) -> Result<Self, Failure> {
        let (spec, recipe) = (&job.chosen.spec, &job.recipe);
        let mut optimizer = job.optimizer();
        let done = taken_up.as_ref().map_or(0, TakenUp::step) as usize;
        let data = taken_up.as_ref().map(TakenUp::data).transpose()?.flatten();
        let left = recipe.steps - done.min(recipe.steps);
        let batches = job
            .source
            .feed(spec, recipe.batch, left, recipe.seed, data)?;
        let config = &resolved.toml;
        let (folder, checkpoints) = if let Some(taken_up) = taken_up {
            taken_up.restore(pipe, &mut optimizer)?;
            // From then on the new folder needs the old one no more.
            taken_up.begin(job, config, |checkpoints| {
                if done == 0 || !checkpoints.due(done, true) {
                    return Ok(());
                }
                checkpoints.save_first(pipe, &optimizer, done, batches.state())
            })?
        } else {
            let (path, writer) = RunFolder::claim(job.args.out.as_deref())?;
            let folder = RunFolder::create(path, config)?;
            (folder, Checkpoints::new(writer, job, config, None))
        };
        let records = folder.records()?;
        if let Some(warning) = run_folder::missing(&records, done as u64) {
            say(&warning);
        }
        let outcome = Outcome::new(folder.path(), records);
        Ok(Self {
            job,
            optimizer,
            folder,
            checkpoints,
            batches,
            outcome,
            done,
            behind: None,
            read: Instant::now(),
            begun: None,
            balance: pipe.partition().balance(),
            astray: 0,
        })
    }

    /// Trains to the last step, or to the one in which a signal comes.
    pub(super) fn run(
        &mut self,
        pipe: &mut Pipeline,
        progress: &Progress,
        stop: &Stop,
    ) -> Result<Ended, Failure> {
        let steps = self.job.recipe.steps;
        progress.go_on(self.done);
        self.read = Instant::now();
        self.begun = Moment::now();
        let mut graphs = Untold::new(self.job, pipe);
        let begun_after = self.done;
        let mut ended = Ended::AllDone;
        while self.done < steps {
            if !self.step(pipe, progress)? {
                break;
            }
            graphs.look(pipe, progress)?;
            if stop.asked() && self.done < steps {
                ended = Ended::Stopped { step: self.done };
                break;
            }
            if self.checkpoints.due(self.done, false) {
                // What is saved is what is known to be good.
                self.catch_up(progress)?;
                // Checkpoints of a run that has gone astray would only replace better ones.
                if self.astray == 0 {
                    self.save(pipe)?;
                }
            }
            self.checkpoints.look()?;
        }
        self.catch_up(progress)?;
        // The last step, whichever that is, unless it has been saved a moment ago.
        let saved = self.done == begun_after || self.checkpoints.asked() == Some(self.done);
        if !saved && self.checkpoints.due(self.done, true) {
            self.save(pipe)?;
        }
        progress.finish(ended);
        let written = self.folder.sync();
        self.checkpoints.settle()?;
        let saved = self.checkpoints.is_saved();
        let files = std::mem::replace(&mut self.outcome.files, Ok(()));
        self.outcome.files = all_told([files, saved, written]);
        Ok(ended)
    }

    /// What it came to.
    pub(super) fn into_outcome(self) -> Outcome {
        self.outcome
    }

    /// Trains one step more; false at the end of the data.
    ///
    /// Where devices work by themselves the numbers of a step are read when the next one
    /// has been given to them, so that they have something to do meanwhile: a loss that is
    /// not finite ends the run one step later than it came. Nothing is saved without the
    /// numbers of the step before having been looked at.
    fn step(&mut self, pipe: &mut Pipeline, progress: &Progress) -> Result<bool, Failure> {
        let (job, step) = (self.job, self.done + 1);
        // A computed schedule may change after a step: what counts is the one before.
        let schedule = (step == job.recipe.steps).then(|| pipe.schedule());
        let schedule = schedule.transpose().map_err(failure)?;
        let trained = step::next(job, pipe, &mut self.optimizer, &mut self.batches, step);
        // Also where this one has failed: what was done is to be in the metrics.
        let told = self.catch_up(progress);
        let Some(trained) = trained? else {
            return told.map(|()| false);
        };
        told?;
        self.done = step;
        let is_ready = trained.is_ready();
        self.behind = Some(Behind { trained, schedule });
        if is_ready {
            self.catch_up(progress)?;
        }
        Ok(true)
    }

    /// Reads the numbers of the last step, where that has not been done.
    fn catch_up(&mut self, progress: &Progress) -> Result<(), Failure> {
        let Some(Behind { trained, schedule }) = self.behind.take() else {
            return Ok(());
        };
        let (job, step, report) = (self.job, trained.step, &trained.report);
        let metrics = trained.metrics(job, self.read)?;
        self.read = Instant::now();
        self.folder.step(&metrics);
        progress.step(&metrics);
        self.outcome.add(&metrics);
        if let Some(schedule) = schedule {
            self.compare(step, report, &schedule)?;
        }
        self.outcome.memory.clone_from(&report.memory);
        if report.loss.is_finite() {
            self.astray = 0;
            self.checkpoints.approve();
            return Ok(());
        }
        self.astray += 1;
        let skipped = report.skipped() && step < job.recipe.steps;
        if !skipped || self.astray == ASTRAY {
            return Err(self.diverged(report.loss, step));
        }
        Ok(())
    }

    /// What is about the last step.
    fn compare(
        &mut self,
        step: usize,
        report: &StepReport,
        schedule: &CheckedSchedule,
    ) -> Result<(), Failure> {
        // The folder's name may be another run's by now.
        self.checkpoints.look()?;
        let job = self.job;
        let others = self.begun.and_then(|begun| begun.since());
        let comparison = Comparison::new(&job.recipe, step, report, schedule)?
            .with_plan(job.plan.as_ref())
            .with_others(others);
        self.outcome.comparison = comparison.text(output::width(None));
        self.outcome.others = others;
        self.outcome.cut = cut::uneven(job, comparison.predicted(), &self.balance);
        // A file that cannot be written must not cost what the training came to.
        self.outcome.files = last_step(&job.args, report, &comparison, &self.folder);
        Ok(())
    }

    fn save(&mut self, pipe: &mut Pipeline) -> Result<(), Failure> {
        // Steps that a checkpoint has done are in the metrics. Where they cannot be
        // written there has been a warning.
        let _ = self.folder.sync();
        let data = self.batches.state();
        self.checkpoints
            .save(pipe, &self.optimizer, self.done, data)
    }

    fn diverged(&mut self, loss: f64, step: usize) -> Failure {
        match self.checkpoints.instead(step) {
            Ok(instead) => Failure::Run(anyhow::anyhow!(
                "the loss is {loss} at step {step}: {instead}"
            )),
            Err(failure) => failure,
        }
    }
}

/// Every error: which of the files are missing is for the last line to say.
fn all_told(results: [Result<(), Failure>; 3]) -> Result<(), Failure> {
    let errors = results.into_iter().filter_map(Result::err);
    let together = errors
        .reduce(|all, next| Failure::Run(anyhow::anyhow!("{}; and {}", all.said(), next.said())));
    together.map_or(Ok(()), Err)
}

/// Writes the files that are about the last step.
fn last_step(
    args: &Args,
    report: &StepReport,
    comparison: &Comparison,
    folder: &RunFolder,
) -> Result<(), Failure> {
    let trace = render::chrome_trace(&report.timeline);
    folder.trace(&trace)?;
    if let Some(path) = &args.trace {
        run_folder::write(path, trace.as_bytes())?;
    }
    if let Some(path) = &args.report {
        run_folder::write(path, comparison.file(path)?.as_bytes())?;
    }
    Ok(())
}
