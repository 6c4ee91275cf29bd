//! One training step, and what it tells.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpipe_partitioner::MicroId;
use tch::Tensor;

use super::Pipeline;
use super::closing::Closed;
use super::loss_scale::Scaler;
use super::losses::Losses;
use super::report::{StepReport, Unread};
use super::stages::Stepped;
use super::wiring::Purpose;
use crate::engine::{EdgeId, Program, Stage};
use crate::error::Error;
use crate::torch::streams::InTransit;
use crate::torch::{BatchError, LossFn, Mode, Values, batch};

/// All of a step that is known before it begins.
struct PreparedStep {
    program: Arc<Program>,
    /// By edge from the caller, by micro-batch.
    columns: Vec<Vec<Values>>,
    /// Samples of each micro-batch.
    sizes: Vec<i64>,
    /// Of the samples, those that each micro-batch has.
    shares: Vec<f64>,
    input_gradient: bool,
}

/// Gradients of the input, by micro-batch.
type Gradients = BTreeMap<(EdgeId, MicroId), InTransit>;

impl PreparedStep {
    /// What all processes do.
    fn call(&self) -> String {
        let samples: i64 = self.sizes.iter().sum();
        let gradient = if self.input_gradient {
            " with the gradient of the input"
        } else {
            ""
        };
        format!("a training step of {samples} samples{gradient}")
    }
}

/// Of the samples whose copy of the first stage is in this process, in their order.
fn input_gradients(gradients: Gradients, sizes: &[i64]) -> Option<Result<Values, BatchError>> {
    let (mut parts, mut own) = (Vec::new(), Vec::new());
    for ((_, micro), sent) in gradients {
        parts.push(sent.values);
        own.extend(sizes.get(micro.index()));
    }
    if parts.is_empty() {
        return None;
    }
    let parts = batch::together(parts).map_err(BatchError::from);
    Some(parts.and_then(|parts| batch::gather_gradients(parts, &own)))
}

impl Pipeline {
    /// Runs the whole schedule over one mini-batch and leaves the gradients of the
    /// exact mini-batch loss in the parameters, added to what earlier calls left.
    ///
    /// *Shapes*: dimension 0 of every input and target is the samples, any number
    /// of them; micro-batches are as even as possible, and fewer than asked for
    /// where there are fewer samples.
    ///
    /// Input and target are tensors, [`Values`], or arrays of the crate [`ndarray`].
    ///
    /// A loss function that returns a tensor returns a mean over the samples of a
    /// micro-batch, and the mini-batch's loss is the mean over all samples. For sums, and
    /// for means over something else, it says so: see [`Loss`](crate::Loss). Where an input
    /// requires a gradient, the report has it.
    ///
    /// *Determinism*: the same seed, batch, micro-batches and threads per stage
    /// give the same bits, whatever the partition and the schedule.
    ///
    /// # Errors
    /// A layer or the loss function fails or panics, the batch does not fit: the
    /// error names stage, layer, micro-batch and action. Gradients and buffers
    /// are then what they were before, and the next call works.
    pub fn train_step(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
        target: impl TryInto<Values, Error: Into<Error>>,
        loss: impl LossFn,
    ) -> Result<StepReport, Error> {
        let input = input.try_into().map_err(Into::into);
        let target = target.try_into().map_err(Into::into);
        let given = input.and_then(|input| Ok((input, target?)));
        let given = given.and_then(|(input, target)| self.prepare_step(&input, &target));
        let call = given
            .as_ref()
            .map_or_else(|_| String::new(), PreparedStep::call);
        let PreparedStep {
            program,
            columns,
            sizes,
            shares,
            input_gradient,
        } = self.engine.agree_on_call(&call, given)?;
        let mode = Mode::Train {
            loss: Arc::new(loss),
            shares: shares.clone(),
            input_gradient,
            non_finite: self.non_finite,
            loss_scale: self.loss_scale_of_step(),
        };
        let stepped = self.engine.step(&program, self.steps, mode, columns)?;
        let scale_before = self.scaler.as_ref().map(Scaler::state);
        let report = self.report(&program, stepped, &shares, &sizes);
        let report = report.and_then(|report| self.learned(report, sizes.len()));
        match self.engine.conclude(report) {
            Ok(report) => {
                self.steps += 1;
                Ok(report)
            }
            Err(error) => {
                if self.engine.are_spread() {
                    // Others may have come less far, or further.
                    let own = self.scaler.as_mut().zip(scale_before);
                    own.into_iter()
                        .for_each(|(own, before)| own.go_back(before));
                }
                let error = self.engine.explain("the numbers of the step", error);
                self.undo()?;
                Err(error)
            }
        }
    }

    /// All of a step that is known before it begins.
    fn prepare_step(&mut self, input: &Values, target: &Values) -> Result<PreparedStep, Error> {
        self.scaler.as_mut().map_or(Ok(()), |own| own.poll(false))?;
        let samples = batch::samples(input, "input", None)?;
        batch::samples(target, "target", Some(samples))?;
        let sizes = batch::sizes(samples, self.programs.micro_batches());
        let input_gradient = input.present().any(Tensor::requires_grad);
        let program = self
            .programs
            .get(Purpose::Train { input_gradient }, sizes.len())?;
        #[allow(
            clippy::cast_precision_loss,
            reason = "a batch has fewer than 2^52 samples"
        )]
        let shares = sizes.iter().map(|&size| size as f64 / samples as f64);
        Ok(PreparedStep {
            program,
            columns: vec![
                batch::scatter(input, &sizes)?,
                batch::scatter(target, &sizes)?,
            ],
            shares: shares.collect(),
            sizes,
            input_gradient,
        })
    }

    /// Leaves no trace of the step that just ended.
    pub(super) fn undo(&mut self) -> Result<(), Error> {
        self.engine.on_each(|_, stage| {
            stage.abort();
            Ok(())
        })?;
        Ok(())
    }

    /// Has a schedule that is computed follow the times of a full step.
    fn learned(&mut self, report: StepReport, micro_batches: usize) -> Result<StepReport, Error> {
        if micro_batches == self.programs.micro_batches() {
            let stages = self.partition.stages();
            let costs = || Ok(report.read()?.timeline.stage_costs(stages));
            self.programs.learn(costs)?;
        }
        Ok(report)
    }

    fn report(
        &mut self,
        program: &Arc<Program>,
        stepped: Stepped,
        shares: &[f64],
        sizes: &[i64],
    ) -> Result<StepReport, Error> {
        let (unread, gradients) = if self.engine.are_spread() {
            self.closed(stepped, shares)?
        } else {
            self.unread(stepped, shares)?
        };
        let memory = self.memory(program.schedule())?;
        let gradients = input_gradients(gradients, sizes);
        let gradients = gradients.transpose()?;
        let checked = self.check_step(&unread.losses, gradients)?;
        let unread = Unread {
            non_finite: checked.non_finite,
            loss_scale: checked.loss_scale,
            finite_check: checked.check,
            ..unread
        };
        let mut report = StepReport::new(program, unread);
        report.input_gradient = checked.input_gradient;
        report.memory = memory;
        Ok(report)
    }

    /// What the step tells, which its devices may not have finished.
    fn unread(&self, stepped: Stepped, shares: &[f64]) -> Result<(Unread, Gradients), Error> {
        let Stepped { outcome, times, .. } = stepped;
        let exits = outcome.exits.into_values();
        let exits = exits.map(|in_transit| in_transit.values);
        let watch = self.engine.watch()?;
        let losses = Losses::new(&self.engine, exits, shares)?;
        drop(watch);
        let unread = Unread {
            times,
            ..Unread::new(losses, outcome.timeline)
        };
        Ok((unread, outcome.gradients))
    }

    /// What the step tells in all processes, which have finished it.
    fn closed(&self, mut stepped: Stepped, shares: &[f64]) -> Result<(Unread, Gradients), Error> {
        let exits = std::mem::take(&mut stepped.outcome.exits);
        let micros: Vec<usize> = exits.keys().map(|(_, micro)| micro.index()).collect();
        let exits = exits.into_values().map(|in_transit| in_transit.values);
        let here = !micros.is_empty();
        let losses = here.then(|| Losses::numbers(&self.engine, exits));
        let losses = losses.transpose()?.unwrap_or_default();
        let gradients = std::mem::take(&mut stepped.outcome.gradients);
        let devices = self.programs.mesh().devices();
        let closed = Closed::of(&self.engine, (stepped, micros, losses), devices)?;
        let losses = Losses::told(&self.engine, &closed.losses, shares)?;
        let unread = Unread {
            host_share: closed.host_share,
            ..Unread::new(losses, closed.timeline)
        };
        Ok((unread, gradients))
    }
}
