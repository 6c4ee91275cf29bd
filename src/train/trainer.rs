//! The training loop.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use gpipe_partitioner::CheckedSchedule;

use super::checkpoints::Checkpoints;
use super::cut;
use super::error::TrainError;
use super::evaluation::Evaluations;
use super::feed::{AnyFeed, Start};
use super::folder::RunFolder;
use super::graphs::GraphNotices;
use super::hook::Hooks;
use super::outcome::{Ended, Outcome};
use super::report::Comparison;
use super::step::{self, PendingStep, Settings, SharedLoss};
use super::stop::Stop;
use super::writer::RunWriter;
use crate::metrics::StepMetrics;
use gpipe_data::Diagnosis;
use gpipe_torch::profile::other_programs::Moment;
use gpipe_torch::{Optimizer, Pipeline, StepReport};

/// A run that is ready: its folder is created or cut off after the last checkpoint, and its weights are
/// loaded. [`Trainer::run`] trains.
#[derive(Debug)]
pub struct Trainer<'a> {
    pub(super) pipe: &'a mut Pipeline,
    pub(super) optimizer: &'a mut Optimizer,
    pub(super) loss: SharedLoss,
    pub(super) batches: AnyFeed<'a>,
    pub(super) held_out: Option<Start<'a>>,
    pub(super) evaluations: Evaluations<'a>,
    pub(super) settings: Settings,
    pub(super) hooks: Hooks<'a>,
    pub(super) stop: Stop,
    pub(super) writer: RunWriter,
    pub(super) checkpoints: Checkpoints,
    /// Number of completed steps.
    pub(super) done: usize,
    /// Number of steps completed before this call.
    pub(super) before: usize,
    /// Whether the second step found the balance uneven.
    pub(super) seems_uneven: bool,
    /// Samples of the steps with known results.
    pub(super) seen: u64,
    /// The last step, until its results are read: see [`Trainer::step`].
    pub(super) pending: Option<PendingStep>,
    pub(super) outcome: Outcome,
    /// When the results of a step were last read and processed.
    pub(super) read: Instant,
    /// When the results of a step were last known, from where speeds count.
    pub(super) told: Instant,
    /// Start of the first step, by the clocks of the machine's cores.
    pub(super) begun: Option<Moment>,
    /// Consecutive last steps with a non-finite loss.
    pub(super) nonfinite_streak: usize,
    /// Number of skipped items reported.
    pub(super) skipped: usize,
}

/// Consecutive skipped steps with a non-finite loss that end a run: a smaller loss scale does not help
/// then, while a single one may be due to an unusual batch.
const MOST_NONFINITE: usize = 3;

impl Trainer<'_> {
    /// Returns the run's folder.
    pub fn folder(&self) -> &RunFolder {
        &self.writer.folder
    }

    /// Returns the number of completed steps.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Returns the handle that ends the run early.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Trains to the last step, to the end of the data, or to a requested stop; then evaluates on
    /// held-out data, unless stopped.
    ///
    /// # Errors
    /// A step fails, the loss or the weights are not finite, or the folder of checkpoints does not
    /// belong to the run any more. A file that cannot be written is a warning to the
    /// [hooks](super::Hook), and the run continues: see [`Outcome::files`].
    pub fn run(mut self) -> Result<Outcome, TrainError> {
        let mut ended = self.train()?;
        self.outcome.best = self.evaluations.standing.best();
        let last = self.evaluations.after(self.done);
        self.outcome.held_out_loss = last.map(|own| own.loss);
        self.outcome.held_out_accuracy = last.and_then(|own| own.accuracy);
        if ended == Ended::AllDone && self.evaluations.are_on() {
            if self.outcome.held_out_loss.is_none() {
                ended = Ended::Unmeasured;
            }
        } else if ended == Ended::AllDone
            && let Some(held_out) = self.held_out.take()
        {
            ended = self.measure(held_out)?;
        }
        self.outcome.ended = ended;
        Ok(self.outcome)
    }

    fn train(&mut self) -> Result<Ended, TrainError> {
        let begun_after = self.done;
        if self.done > 0 && !self.is_left() {
            let all = self.done;
            self.hooks.note(&format!(
                "all {all} steps are done: nothing is left to train"
            ));
        }
        self.hooks.each(|hook| hook.begin(begun_after));
        self.read = Instant::now();
        self.told = self.read;
        self.begun = Moment::now();
        let mut graphs = GraphNotices::new(self.pipe)?;
        let mut ended = Ended::AllDone;
        if self.evaluate_late(false)? && self.checkpoints.due(self.done, true) {
            self.save()?;
        }
        while self.is_left() {
            if self.evaluations.are_over() {
                ended = Ended::EarlyStopped { step: self.done };
                break;
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(self.saved_before(error, begun_after)),
            }
            graphs.look(self.pipe, &mut self.hooks)?;
            if self.stop.is_asked() && self.is_left() {
                ended = Ended::Stopped { step: self.done };
                break;
            }
            let is_best = self.evaluations.standing.is_best(self.done);
            if self.checkpoints.due(self.done, is_best) {
                // Only what is known to be good is saved.
                self.catch_up()?;
                // Checkpoints of a run that has diverged would only replace better ones.
                if self.nonfinite_streak == 0 {
                    self.save()?;
                }
            }
            self.checkpoints.look(&mut self.hooks)?;
            self.confirm(begun_after);
        }
        self.catch_up()?;
        let is_new_best = ended == Ended::AllDone && self.evaluate_late(true)?;
        // Save the last step, unless it was saved a moment ago.
        let saved = self.done == begun_after || self.checkpoints.asked() == Some(self.done);
        let saved = saved && !is_new_best;
        if !saved && self.checkpoints.due(self.done, true) {
            self.save()?;
        }
        self.hooks.each(|hook| hook.end(ended));
        let written = self.writer.sync();
        self.checkpoints.settle(&mut self.hooks)?;
        self.writer.confirm(&mut self.hooks);
        let saved = self.checkpoints.is_saved();
        let files = std::mem::replace(&mut self.outcome.files, Ok(()));
        self.outcome.files = together([files, saved, written]);
        Ok(ended)
    }

    /// Handles the error of a step. If the data gave no batch, the training so far is saved, unless
    /// other processes are already in the step.
    fn saved_before(&mut self, error: TrainError, begun_after: usize) -> TrainError {
        let TrainError::Data(error) = error else {
            return error;
        };
        let there = self.done == begun_after || self.checkpoints.asked() == Some(self.done);
        let due = self.checkpoints.due(self.done, true) && self.nonfinite_streak == 0;
        let alone = self.pipe.world().is_none();
        if due && alone && !there {
            // The error of the data takes precedence.
            let _ = self.save();
        }
        let _ = self.checkpoints.settle(&mut self.hooks);
        let _ = self.writer.sync();
        TrainError::NoBatch {
            error,
            folder: self.writer.folder.path().to_owned(),
            saved: self.checkpoints.whole(),
        }
    }

    /// Warns of items skipped since the last step.
    fn tell_skipped(&mut self) {
        let all = self.batches.0.skipped();
        let new = all.iter().skip(self.skipped);
        let new: Vec<String> = new.map(|error| format!("skipped {error}")).collect();
        self.skipped = all.len();
        new.iter().for_each(|skipped| self.hooks.warning(skipped));
    }

    fn is_last(&self, step: usize) -> bool {
        Some(step) == self.settings.steps
    }

    /// Whether the step is used to judge the balance; the first one is a warm-up.
    fn tells_cut(&self, step: usize) -> bool {
        (self.before + 2..=self.before + 3).contains(&step)
    }

    /// Reports an uneven balance early in the run, if two consecutive steps agree: one may have been
    /// disturbed.
    fn look_at_cut(
        &mut self,
        step: usize,
        report: &StepReport,
        schedule: &CheckedSchedule,
    ) -> Result<(), TrainError> {
        let balance = self.pipe.partition().balance();
        let uneven = cut::uneven_step(report, schedule, &balance)?;
        let bubble = self.outcome.median(|record| record.bubble_predicted);
        let words = uneven.and_then(|own| own.words(bubble));
        if let Some(words) = words.as_ref().filter(|_| self.seems_uneven) {
            self.hooks.each(|hook| hook.cut(step as u64, words));
        }
        self.seems_uneven = words.is_some();
        Ok(())
    }

    fn is_left(&self) -> bool {
        self.settings.steps.is_none_or(|steps| self.done < steps)
    }

    /// Trains one more step; false at the end of the data.
    ///
    /// On asynchronous devices, the results of a step are read after the next one is submitted, to keep
    /// the devices busy: a non-finite loss ends the run one step later. Nothing is saved before the
    /// results of the previous step have been checked.
    fn step(&mut self) -> Result<bool, TrainError> {
        let step = self.done + 1;
        let is_looked_at = self.is_last(step) || self.tells_cut(step);
        let next = step::next(
            self.pipe,
            self.optimizer,
            &mut *self.batches.0,
            &self.loss,
            &self.settings,
            (step, is_looked_at),
        );
        // Also if this step failed: completed steps must be in the metrics.
        let told = self.catch_up();
        let Some(next) = next? else {
            return told.map(|()| false);
        };
        told?;
        self.tell_skipped();
        self.done = step;
        let is_last = !self.is_left();
        // An evaluation must use the weights of this step, not of the next one.
        let is_ready = next.is_ready() || self.evaluations.is_due(step, is_last);
        self.pending = Some(next);
        if is_ready {
            self.catch_up()?;
        }
        Ok(true)
    }

    /// Reads the results of the last step, unless that was done.
    fn catch_up(&mut self) -> Result<(), TrainError> {
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let (step, report) = (pending.step, &pending.report);
        let metrics = pending.metrics(self.read, &mut self.told)?;
        let mut metrics = self.rated(metrics);
        let intra_op = self.pipe.threads_per_stage();
        let measures = self.batches.0.measures();
        let measures = measures.map(|mut own| {
            own.intra_op = intra_op;
            own
        });
        self.outcome.input = measures.as_ref().map(Diagnosis::of);
        if let Some(input) = &self.outcome.input {
            metrics = metrics.fed(input);
        }
        let evaluated = if metrics.loss.is_finite() {
            self.evaluate(step, !self.is_left())
        } else {
            Ok(None)
        };
        let known = evaluated.as_ref().ok().copied().flatten();
        metrics.held_out_loss = known.map(|own| own.loss);
        metrics.held_out_accuracy = known.and_then(|own| own.accuracy);
        self.read = Instant::now();
        self.writer.step(&metrics, &mut self.hooks);
        self.hooks.each(|hook| hook.step(&metrics));
        self.outcome.records.push(metrics);
        if let Some(evaluation) = evaluated? {
            self.tell_evaluated(evaluation);
        }
        match &pending.schedule {
            Some(schedule) if self.is_last(step) => self.compare(step, report, schedule)?,
            Some(schedule) => self.look_at_cut(step, report, schedule)?,
            None => {}
        }
        self.outcome.memory.clone_from(&report.memory);
        let numbers = report.read()?;
        if numbers.loss.is_finite() {
            self.nonfinite_streak = 0;
            self.checkpoints.approve();
            return Ok(());
        }
        self.nonfinite_streak += 1;
        let skipped = numbers.skipped() && Some(step) != self.settings.steps;
        if !skipped || self.nonfinite_streak == MOST_NONFINITE {
            let (loss, hooks) = (numbers.loss, &mut self.hooks);
            return Err(self.checkpoints.diverged(loss, step, hooks));
        }
        Ok(())
    }

    /// Adds rates, progress and setup to the metrics.
    fn rated(&mut self, metrics: StepMetrics) -> StepMetrics {
        self.seen += metrics.samples;
        let (own, samples) = (&self.outcome, metrics.samples_per_s);
        let rates = &own.rates;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        StepMetrics {
            // With millisecond precision.
            time: now.map_or(0.0, |now| now.as_millis() as f64 / 1e3),
            samples: self.seen,
            tokens: rates.tokens.map(|tokens| tokens as u64 * self.seen),
            epoch: rates.epoch.map(|epoch| self.seen as f64 / epoch as f64),
            chunks: own.chunks,
            recompute: own.recompute.to_string(),
            tokens_per_s: rates.tokens_per_s(samples),
            mfu: rates.mfu(samples),
            ..metrics
        }
    }

    /// Writes the files about the last step.
    fn compare(
        &mut self,
        step: usize,
        report: &StepReport,
        schedule: &CheckedSchedule,
    ) -> Result<(), TrainError> {
        // The folder may belong to another run by now.
        self.checkpoints.look(&mut self.hooks)?;
        // The other processes of a run do not count as other programs.
        let alone = self.pipe.world().is_none();
        let begun = self.begun.filter(|_| alone);
        let others = begun.and_then(|begun| begun.since());
        let called = (self.outcome.schedule.as_str(), &self.outcome.recompute);
        let comparison = Comparison::new(step, report, schedule, called)?
            .of_model(self.settings.model.as_deref())
            .with_plan(self.settings.plan.as_ref())
            .with_input(self.outcome.input.as_ref())
            .with_others(others);
        self.outcome.others = others;
        let balance = self.pipe.partition().balance();
        self.outcome.uneven_cut = cut::uneven(comparison.predicted(), &balance);
        // A file that cannot be written must not lose the result of training.
        let files = &self.settings.files;
        if self.writer.is_here() {
            self.outcome.files = files.write(report, &comparison, &self.writer.folder);
        }
        self.outcome.comparison = Some(comparison);
        Ok(())
    }

    /// Writes the configuration of a resumed run once its second step has a finite loss: one that ruins
    /// the weights at once must not be used for the next resume.
    fn confirm(&mut self, begun_after: usize) {
        let known = self.done - usize::from(self.pending.is_some());
        if known >= begun_after + 2 && self.nonfinite_streak == 0 {
            self.writer.confirm(&mut self.hooks);
        }
    }

    fn save(&mut self) -> Result<(), TrainError> {
        // Steps of a checkpoint must be in the metrics. If they cannot be written, there has been a
        // warning.
        let _ = self.writer.sync();
        let data = self.batches.0.state();
        let state = (data, self.evaluations.standing.clone());
        let (pipe, hooks) = (&mut *self.pipe, &mut self.hooks);
        self.checkpoints
            .save(pipe, self.optimizer, self.done, state, hooks)
    }
}

/// Combines all errors, as the final message must name all missing files.
fn together(results: [Result<(), TrainError>; 3]) -> Result<(), TrainError> {
    let mut errors: Vec<TrainError> = results.into_iter().filter_map(Result::err).collect();
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(TrainError::Several(errors)),
    }
}
