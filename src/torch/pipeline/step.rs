//! One training step and its report.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use gpipe_partitioner::MicroId;
use tch::Tensor;

use super::Pipeline;
use super::loss_scale::Scaler;
use super::losses::{Losses, Shares};
use super::report::{StepReport, Unread};
use super::stages::{Ended, Stages, Stepped};
use super::step_message::{self, Closed};
use super::wiring::Purpose;
use crate::error::Error;
use crate::fail_point::fail_point;
use crate::streams::InTransit;
use crate::{BatchError, LossFn, Mode, NonFinite, TorchError, Values, batch, operators};
use gpipe_engine::{EdgeId, Program, Stage};

/// Data of a step that is known before it begins.
struct PreparedStep {
    program: Arc<Program>,
    /// Inputs by edge from the caller, by micro-batch.
    columns: Vec<Vec<Values>>,
    /// Samples of each micro-batch.
    sizes: Vec<i64>,
    shares: Shares,
    input_gradient: bool,
}

/// Unread numbers of a step, and the gradients of the input.
type Unreported = (Unread, Option<OfInput>);

/// Gradients of the input: the local micro-batches, and their samples' gradients.
type OfInput = (Vec<usize>, Values);

/// Gradients of the input, by micro-batch.
type Gradients = BTreeMap<(EdgeId, MicroId), InTransit>;

impl PreparedStep {
    /// Describes the call, which all processes make.
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

/// Joins the gradients of the samples whose copy of the first stage is in this process, in order.
fn input_gradients(gradients: Gradients, sizes: &[i64]) -> Option<Result<OfInput, BatchError>> {
    let (mut parts, mut micros) = (Vec::new(), Vec::new());
    for ((_, micro), sent) in gradients {
        parts.push(sent.values);
        micros.push(micro.index());
    }
    if parts.is_empty() {
        return None;
    }
    let own: Vec<i64> = micros
        .iter()
        .filter_map(|micro| sizes.get(*micro))
        .copied()
        .collect();
    let parts = batch::together(parts).map_err(BatchError::from);
    let gathered = parts.and_then(|parts| batch::gather_gradients(parts, &own));
    Some(gathered.map(|gathered| (micros, gathered)))
}

/// Multiplies the input's gradients by the remaining factor of each replica's losses, if the
/// replicas' losses are not combined and the factors differ.
fn weighted(
    gradients: Option<OfInput>,
    losses: &Losses,
    sizes: &[i64],
) -> Result<Option<Values>, TorchError> {
    let Some((micros, values)) = gradients else {
        return Ok(None);
    };
    if losses.is_one() {
        return Ok(Some(values));
    }
    let scaled = |own: Tensor| {
        let mut begin = 0;
        let parts = micros.iter().map(|&micro| {
            let part = own.f_narrow(0, begin, sizes[micro])?;
            begin += sizes[micro];
            match losses.weight_scale_of(micro) {
                Some(scale) => part.f_mul_scalar(scale),
                None => Ok(part),
            }
        });
        let parts: Vec<Tensor> = parts.collect::<Result<_, _>>()?;
        Tensor::f_cat(&parts, 0)
    };
    values.try_map(|own| operators(|| scaled(own))).map(Some)
}

impl Pipeline {
    /// Runs the whole schedule over one mini-batch and adds the gradients of the exact mini-batch
    /// loss to those that earlier calls left in the parameters.
    ///
    /// *Shapes*: dimension 0 of every input and target counts samples, any number of them;
    /// micro-batches are as even as possible, and fewer than configured if there are fewer samples.
    ///
    /// Input and target are tensors, [`Values`], or arrays of the crate [`ndarray`].
    ///
    /// A loss function that returns a tensor returns a mean over the samples of a micro-batch, and
    /// the mini-batch's loss is the mean over all samples. For sums, and for means over something
    /// else, see [`Loss`](crate::Loss). If an input requires a gradient, the report contains it.
    ///
    /// *Determinism*: the same seed, batch, micro-batches and threads per stage
    /// give the same bits, whatever the partition and the schedule.
    ///
    /// A layer or the loss function fails or panics, or the batch does not fit: the error names
    /// stage, layer, micro-batch and action. Gradients and buffers are then as before, and the next
    /// call works.
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
        let prepared = self.engine.begin_call(&call, given)?;
        fail_point("head");
        let mode = Mode::Train {
            loss: Arc::new(loss),
            shares: prepared.shares.of_micros.clone(),
            input_gradient: prepared.input_gradient,
            non_finite: self.non_finite,
            loss_scale: self.loss_scale_of_step(),
        };
        let report = if self.engine.are_spread() {
            self.step_of_all(prepared, mode)
        } else {
            self.step_of_one(prepared, mode)
        };
        self.steps += u64::from(report.is_ok());
        report
    }

    /// Runs a step whose stages are all in this process.
    fn step_of_one(&mut self, prepared: PreparedStep, mode: Mode) -> Result<StepReport, Error> {
        let PreparedStep {
            program,
            columns,
            sizes,
            shares,
            ..
        } = prepared;
        let stepped = self.engine.step(&program, self.steps, mode, columns)?;
        let unread = self.unread(stepped, &shares, &sizes);
        let report = unread.and_then(|unread| self.report(&program, unread, &sizes));
        report.map_err(|error| self.not_reported(error))
    }

    /// Runs a step over several processes. Each process's part of the result is sent with the vote
    /// that makes the step count.
    fn step_of_all(&mut self, prepared: PreparedStep, mode: Mode) -> Result<StepReport, Error> {
        let PreparedStep {
            program,
            columns,
            sizes,
            shares,
            ..
        } = prepared;
        let tell = |stages: &Stages, ended: Ended<'_>| {
            let told = tell(stages, ended, &sizes);
            told.map_err(|error| stages.explain("the numbers of the step", error))
        };
        let step = (self.steps, mode);
        let stepped = self.engine.step_telling(&program, step, columns, tell)?;
        let (_, gradients, told) = stepped;
        let scale_before = self.scaler.as_ref().map(Scaler::state);
        // All processes read the same data, and so fail alike or not at all.
        let read = self.read(&told, &shares);
        let ends = read
            .as_ref()
            .is_ok_and(|unread| !self.has_more_to_do(unread));
        let report = read.and_then(|unread| self.report(&program, (unread, gradients), &sizes));
        if ends {
            // The step counts in the other processes.
            return report.inspect_err(|error| self.engine.lose(error));
        }
        self.engine.conclude(report).map_err(|error| {
            // Other processes may have progressed less, or further.
            let own = self.scaler.as_mut().zip(scale_before);
            own.into_iter()
                .for_each(|(own, before)| own.go_back(before));
            self.not_reported(error)
        })
    }

    /// Returns whether a step that counts may still fail in one process alone: whether the
    /// processes must do more than combine their messages.
    fn has_more_to_do(&self, unread: &Unread) -> bool {
        self.scaler.is_some()
            || self.non_finite == NonFinite::Skip
            || self.measures_memory
            || self.programs.learns()
            || !self.ties.are_none()
            || unread.losses.factor(0, None).is_some()
    }

    /// Undoes a step whose result could not be reported.
    fn not_reported(&mut self, error: Error) -> Error {
        let error = self.engine.explain("the numbers of the step", error);
        match self.undo() {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }

    /// Prepares everything that is known before the step begins.
    fn prepare_step(&mut self, input: &Values, target: &Values) -> Result<PreparedStep, Error> {
        self.scaler.as_mut().map_or(Ok(()), |own| own.poll(false))?;
        let samples = batch::samples(input, "input", None)?;
        batch::samples(target, "target", Some(samples))?;
        let sizes = batch::sizes(samples, self.programs.micro_batches());
        let input_gradient = input.present().any(Tensor::requires_grad);
        let program = self
            .programs
            .get(Purpose::Train { input_gradient }, sizes.len())?;
        let shares = self.shares(&program, &sizes);
        Ok(PreparedStep {
            program,
            columns: vec![
                batch::scatter(input, &sizes)?,
                batch::scatter(target, &sizes)?,
            ],
            shares,
            sizes,
            input_gradient,
        })
    }

    /// Returns the share of each micro-batch in the loss: of all samples, or, if replicas train
    /// alone, of its replica's.
    pub(super) fn shares(&self, program: &Program, sizes: &[i64]) -> Shares {
        let together: Vec<Range<usize>> = if self.engine.train_alone() {
            let all = 0..self.replicas();
            all.map(|replica| program.micro_batches_of(replica))
                .collect()
        } else {
            std::iter::once(0..sizes.len()).collect()
        };
        #[allow(
            clippy::cast_precision_loss,
            reason = "a batch has fewer than 2^52 samples"
        )]
        let share = |own: &Range<usize>| {
            let sizes = &sizes[own.clone()];
            let samples: i64 = sizes.iter().sum();
            sizes.iter().map(move |&size| size as f64 / samples as f64)
        };
        Shares {
            of_micros: together.iter().flat_map(share).collect(),
            together,
        }
    }

    /// Undoes the step that just ended without a trace.
    pub(super) fn undo(&mut self) -> Result<(), Error> {
        self.engine.on_each(|_, stage| {
            stage.abort();
            Ok(())
        })?;
        Ok(())
    }

    /// Recomputes a computed schedule for the measured times of a full step.
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
        (unread, gradients): Unreported,
        sizes: &[i64],
    ) -> Result<StepReport, Error> {
        let memory = self.memory(program)?;
        let gradients = weighted(gradients, &unread.losses, sizes)?;
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
        self.learned(report, sizes.len())
    }

    /// Returns the step's numbers, which its devices may not have finished.
    fn unread(
        &self,
        stepped: Stepped,
        shares: &Shares,
        sizes: &[i64],
    ) -> Result<Unreported, Error> {
        let Stepped { outcome, times } = stepped;
        let exits = outcome.exits.into_values();
        let exits = exits.map(|in_transit| in_transit.values);
        let watch = self.engine.watch()?;
        let losses = Losses::new(&self.engine, exits, shares)?;
        drop(watch);
        let unread = Unread {
            times,
            ..Unread::new(losses, outcome.timeline)
        };
        let gradients = input_gradients(outcome.gradients, sizes);
        Ok((unread, gradients.transpose()?))
    }

    /// Returns the step's numbers from the messages of all processes, which have finished it.
    fn read(&self, told: &[Vec<u8>], shares: &Shares) -> Result<Unread, Error> {
        let closed = Closed::of(told, self.programs.mesh().devices())?;
        let losses = Losses::told(&self.engine, &closed.losses, shares)?;
        Ok(Unread {
            host_share: closed.host_share,
            ..Unread::new(losses, closed.timeline)
        })
    }
}

/// Makes this process's message about a step, and the part that it keeps: the gradients of the
/// input, if the first stage is here.
fn tell(
    stages: &Stages,
    ended: Ended<'_>,
    sizes: &[i64],
) -> Result<(Option<OfInput>, Vec<u8>), Error> {
    let exits = std::mem::take(&mut ended.outcome.exits);
    let micros: Vec<usize> = exits.keys().map(|(_, micro)| micro.index()).collect();
    let exits = exits.into_values().map(|in_transit| in_transit.values);
    let here = !micros.is_empty();
    let losses = here.then(|| Losses::numbers(stages, exits));
    let losses = losses.transpose()?.unwrap_or_default();
    let gradients = std::mem::take(&mut ended.outcome.gradients);
    let gradients = input_gradients(gradients, sizes).transpose()?;
    Ok((
        gradients,
        step_message::told(stages, ended, (micros, losses))?,
    ))
}
