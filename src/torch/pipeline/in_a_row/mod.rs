//! Several training steps, of which none waits for the one before.
//!
//! A run of steps is one step of the engine ([`Program::in_a_row`](gpipe_engine::Program::in_a_row)).
//! If all of them count as they are, it is as if each had had a barrier behind it. Otherwise the
//! run is undone on all stages, and its steps are done again, with barriers, up to the one that does
//! not count or is clipped: so that its error, its report and its bits are those that it has there.

mod attempt_length;
mod run;

use std::fmt;
use std::sync::Arc;

use super::{GradNorm, Pipeline, StepReport};
use crate::error::{Error, Setting, SettingsError};
use crate::optim::Optimizer;
use crate::{Loss, LossFn, Values};
pub(super) use attempt_length::Pace;

/// Options of [`Pipeline::train_steps`].
///
/// ```
/// use gpipe::report::StepsInARow;
///
/// let steps = StepsInARow::default().max_norm(1.0).learning_rates(|step| 1e-3 / (1.0 + step as f64));
/// ```
#[derive(Default)]
#[doc(alias = "post-validation")]
pub struct StepsInARow<'a> {
    max_norm: Option<f64>,
    rates: Option<Box<dyn Fn(usize) -> f64 + 'a>>,
    required: bool,
}

impl<'a> StepsInARow<'a> {
    /// Limits the gradients of each step as [`Pipeline::clip_grad_norm`] does; infinity only
    /// measures their norm. No limit by default.
    #[must_use]
    pub fn max_norm(mut self, max_norm: f64) -> Self {
        self.max_norm = Some(max_norm);
        self
    }

    /// Sets the learning rate of each step, counted from 0 in the call; by default that of the
    /// optimizer.
    #[must_use]
    pub fn learning_rates(mut self, of_step: impl Fn(usize) -> f64 + 'a) -> Self {
        self.rates = Some(Box::new(of_step));
        self
    }

    /// Makes it an error if the pipeline always needs a barrier between steps; off by default.
    #[must_use]
    pub fn required(mut self, required: bool) -> Self {
        self.required = required;
        self
    }
}

impl fmt::Debug for StepsInARow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepsInARow")
            .field("max_norm", &self.max_norm)
            .field("rates", &self.rates.is_some())
            .field("required", &self.required)
            .finish()
    }
}

/// A completed step of [`Pipeline::train_steps`].
#[derive(Debug)]
#[non_exhaustive]
pub struct StepInARow {
    /// The report that [`Pipeline::train_step`] would have returned.
    pub report: StepReport,
    /// The norm that [`Pipeline::clip_grad_norm`] would have returned, if a limit was set.
    pub grad_norm: Option<GradNorm>,
    /// Whether there were barriers before and after the step.
    pub barrier: bool,
}

/// A loss function shared by all steps.
#[derive(Clone)]
struct SharedLoss(Arc<dyn LossFn>);

impl LossFn for SharedLoss {
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        self.0.loss(outputs, targets)
    }
}

/// Inputs and targets of the steps, or an error.
type Batches = Vec<Result<(Values, Values), Error>>;

impl Pipeline {
    /// Trains on one mini-batch after the other, as [`Pipeline::train_step`],
    /// [`Pipeline::clip_grad_norm`] and [`Optimizer::step`] in turn, but without a barrier between
    /// the steps: each stage updates its weights when its own gradients are complete, and continues
    /// with the next step while others still run the previous one. A schedule whose only bubble is
    /// filling and draining the pipeline (`zb-h2`, `zbv`) has none in the steady state. All batches
    /// are taken at the beginning; `each` receives the steps in order when they are done.
    ///
    /// Facts that need all stages are known only afterwards: an error, a non-finite number, the
    /// norm of the gradients. If a step does not count, or its gradients must be clipped, all
    /// stages go back to the beginning of the call (or of the part of it that was tried without
    /// barriers), and the steps up to that one are repeated with barriers. If this happens often,
    /// steps have barriers for a while. [`StepInARow::barrier`] says which had one.
    ///
    /// Stages keep a copy of parameters, buffers and optimizer states meanwhile
    /// ([`Pipeline::kept_for_rows`]), and the activations of up to two steps are in flight together
    /// if the schedule allows it.
    ///
    /// *Barriers* always separate the steps with: several processes, replicas, devices other than
    /// the CPU, tied weights, skips from one stage to another, offloaded optimizer states, measured
    /// memory ([`PipelineBuilder::measure_memory`](crate::PipelineBuilder::measure_memory)). So
    /// they do for the first step, in which layers are inspected, a step after gradients that were
    /// accumulated before, a batch with another number of micro-batches than the next, an input
    /// that requires a gradient, and models in which a layer outputs a parameter unchanged.
    ///
    /// *Determinism*: bits, errors, skipped steps and reports are those of steps with barriers. A
    /// layer or loss function with state outside of buffers sees repeated steps twice. In a step's
    /// report, the timeline is the step's own part of the run.
    ///
    /// ```
    /// # use gpipe::{Optimizer, Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}, optim::AdamW, report::StepsInARow};
    /// # use gpipe::partitioner::ScheduleKind;
    /// # let model = Sequential::new()
    /// #     .layer("hidden", |p| nn::linear(p, 8, 32, Default::default()))
    /// #     .layer("head", |p| nn::linear(p, 32, 2, Default::default()));
    /// let mut pipe = Pipeline::builder(model)
    ///     .devices(&[Device::Cpu, Device::Cpu])
    ///     .micro_batches(4)
    ///     .schedule(ScheduleKind::ZbH2)
    ///     .build()?;
    /// let mut optimizer = Optimizer::new(AdamW::default());
    /// let batch = || (
    ///     Tensor::randn([16, 8], (Kind::Float, Device::Cpu)),
    ///     Tensor::zeros([16], (Kind::Int64, Device::Cpu)),
    /// );
    /// let loss = |out: &Tensor, y: &Tensor| out.cross_entropy_for_logits(y);
    /// let mut losses = Vec::new();
    /// let batches = (0..5).map(|_| batch());
    /// pipe.train_steps(&mut optimizer, batches, loss, &StepsInARow::default(), |step| {
    ///     losses.push(step.report);
    /// })?;
    /// assert_eq!(losses.len(), 5);
    /// # Ok::<(), gpipe::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of a step, its clipping or its update; earlier steps are done and were passed to
    /// `each`. If a stage does not return
    /// ([`PipelineBuilder::patience`](crate::PipelineBuilder::patience)), the steps of the same run
    /// are not done either. [`Error::Settings`] if barriers are unavoidable and the pipeline
    /// [must](StepsInARow::required) have none.
    pub fn train_steps<X, Y>(
        &mut self,
        optimizer: &mut Optimizer,
        batches: impl IntoIterator<Item = (X, Y)>,
        loss: impl LossFn,
        steps: &StepsInARow<'_>,
        mut each: impl FnMut(StepInARow),
    ) -> Result<(), Error>
    where
        X: TryInto<Values, Error: Into<Error>>,
        Y: TryInto<Values, Error: Into<Error>>,
    {
        let batches = batches.into_iter().map(|(input, target)| {
            let input = input.try_into().map_err(Into::into);
            input.and_then(|input| Ok((input, target.try_into().map_err(Into::into)?)))
        });
        let mut batches: Batches = batches.collect();
        let loss = SharedLoss(Arc::new(loss));
        let always = self.always_has_barriers(optimizer);
        if let (Some(why), true) = (always, steps.required) {
            let why = format!("steps in a row always have barriers between them here: {why}");
            return Err(SettingsError::invalid(Setting::StepsInARow, why).into());
        }
        let mut done = 0;
        while !batches.is_empty() {
            let length = match always {
                Some(_) => 0,
                None => self.row_pace.next(batches.len()),
            };
            let row = self.try_row(optimizer, &batches[..length], &loss, (done, steps))?;
            if let Some(row) = row {
                done += row.len();
                batches.drain(..row.len());
                row.into_iter().for_each(&mut each);
                continue;
            }
            let step = self.step_with_barrier(optimizer, batches.remove(0), &loss, (done, steps));
            self.row_pace.step();
            done += 1;
            each(step?);
        }
        Ok(())
    }

    /// Returns the bytes of the copies that all stages last kept for [`Pipeline::train_steps`]; 0
    /// if it always had barriers.
    pub fn kept_for_rows(&self) -> u64 {
        self.row_bytes
    }

    /// Returns why steps of this pipeline always have barriers, if they do.
    fn always_has_barriers(&self, optimizer: &Optimizer) -> Option<&'static str> {
        let is_cpu = |device: &tch::Device| *device == tch::Device::Cpu;
        let reasons = [
            (
                self.engine.are_spread(),
                "the pipeline is spread over processes",
            ),
            (self.replicas() > 1, "it has replicas"),
            (!self.devices.iter().all(is_cpu), "devices are not the CPU"),
            (!self.ties.are_none(), "weights are tied"),
            (
                self.programs.has_portals(),
                "a skip goes from one stage to another",
            ),
            (self.measures_memory, "its memory is measured"),
            (optimizer.offloads(), "optimizer states are offloaded"),
        ];
        let mut reasons = reasons.into_iter();
        reasons.find_map(|(is_so, why)| is_so.then_some(why))
    }

    /// Runs a step with a barrier, as the caller would.
    fn step_with_barrier(
        &mut self,
        optimizer: &mut Optimizer,
        batch: Result<(Values, Values), Error>,
        loss: &SharedLoss,
        (number, steps): (usize, &StepsInARow<'_>),
    ) -> Result<StepInARow, Error> {
        let (input, target) = match batch {
            Ok(batch) => batch,
            Err(error) => return Err(self.not_given(error)),
        };
        let report = self.train_step(input, target, loss.clone())?;
        let grad_norm = steps.max_norm.map(|limit| self.clip_gradients(limit));
        let grad_norm = grad_norm.transpose()?;
        if let Some(rates) = &steps.rates {
            optimizer.set_lr(rates(number));
        }
        optimizer.step(self)?;
        Ok(StepInARow {
            report,
            grad_norm,
            barrier: true,
        })
    }

    /// Reports that this process has no batch; others may have one.
    fn not_given(&self, error: Error) -> Error {
        self.refuse(&error.to_string());
        error
    }
}
