//! The public face: a model over devices, trained one mini-batch at a time.

mod builder;
mod check_step;
mod clip;
mod closing;
mod device_loss_scale;
mod device_times;
mod finite_check;
mod host_wait;
mod loss_scale;
mod losses;
mod memory;
mod programs;
mod ranks;
mod readback;
pub(crate) mod report;
mod snapshot;
mod stages;
mod ties;
mod weights;
mod wiring;

use std::collections::BTreeMap;
use std::sync::Arc;

use gpipe_partitioner::{CheckedSchedule, MicroId, Partition, StageId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Tensor};

use crate::engine::{EdgeId, Program, Stage};
use crate::error::{Error, Setting, SettingsError};
use crate::torch::batch;
use crate::torch::streams::InTransit;
use crate::torch::{
    BatchError, GraphUse, LossFn, Mode, NonFinite, Precision, Recompute, Sequential, TorchError,
    Values,
};

use crate::world::World;

pub use builder::PipelineBuilder;
pub(crate) use builder::check_model;
use builder::check_names;
pub use clip::GradNorm;
pub use loss_scale::LossScale;
pub use memory::{MemoryReport, MemoryUse};
pub use report::{StepNumbers, StepReport};
pub(crate) use snapshot::{Draws, Fitting, Form};

use closing::Closed;
use loss_scale::Scaler;
use losses::Losses;
use programs::Programs;
pub(crate) use ranks::StopLine;
use report::Unread;
use stages::{CopyId, Stages, Stepped};
use ties::Ties;
use wiring::Purpose;

/// A model cut into stages, each on its own device, trained as one.
///
/// ```
/// use gpipe::{AdamW, Optimizer, Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}};
///
/// let model = Sequential::new()
///     .layer("hidden", |p| nn::linear(p, 8, 32, Default::default()))
///     .layer("relu", |_| nn::func(|x| x.relu()))
///     .layer("head", |p| nn::linear(p, 32, 2, Default::default()));
/// let mut pipe = Pipeline::new(model, &[Device::Cpu, Device::Cpu], 4)?;
/// let mut optimizer = Optimizer::new(AdamW { lr: 1e-2, ..AdamW::default() });
/// let x = Tensor::randn([16, 8], (Kind::Float, Device::Cpu));
/// let y = Tensor::zeros([16], (Kind::Int64, Device::Cpu));
/// for _ in 0..3 {
///     let step = pipe.train_step(&x, &y, |out: &Tensor, y: &Tensor| out.cross_entropy_for_logits(y))?;
///     optimizer.step(&mut pipe)?;
///     println!("loss {}", step.read()?.loss);
/// }
/// # Ok::<(), gpipe::Error>(())
/// ```
#[derive(Debug)]
pub struct Pipeline {
    engine: Stages,
    devices: Vec<Device>,
    partition: Partition,
    programs: Programs,
    ties: Ties,
    precision: Precision,
    scaler: Option<Scaler>,
    non_finite: NonFinite,
    measures_memory: bool,
    threads: usize,
    seed: u64,
    steps: u64,
}

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
    /// Puts `model` on `devices`, balanced by parameter bytes, one stage each, to
    /// train in `n_micro` micro-batches under the schedule 1F1B.
    ///
    /// Devices may repeat; every entry is a stage with a thread of its own.
    /// [`Pipeline::builder`] sets the rest.
    ///
    /// # Errors
    /// More stages than layers, no such device, a layer that cannot be built.
    pub fn new(model: Sequential, devices: &[Device], n_micro: usize) -> Result<Self, Error> {
        Self::builder(model)
            .devices(devices)
            .micro_batches(n_micro)
            .build()
    }

    /// Everything that can be chosen, with a default for each.
    pub fn builder(model: Sequential) -> PipelineBuilder {
        PipelineBuilder::new(model)
    }

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

    /// The outputs for `input`, computed in inference mode, streamed through the
    /// same stages in as many micro-batches; no graph is kept.
    ///
    /// # Errors
    /// As [`Pipeline::train_step`].
    pub fn forward_values(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
    ) -> Result<Values, Error> {
        let input = input.try_into().map_err(Into::into);
        let given = input.and_then(|input| self.prepare_inference(&input));
        let call = given.as_ref().map_or_else(
            |_| String::new(),
            |(program, _)| format!("an inference of {} micro-batches", program.micro_batches()),
        );
        let (program, columns) = self.engine.agree_on_call(&call, given)?;
        let stepped = self
            .engine
            .step(&program, self.steps, Mode::Infer, columns)?;
        let outputs = self.outputs(&program, stepped);
        self.engine.conclude(outputs)
    }

    fn prepare_inference(
        &mut self,
        input: &Values,
    ) -> Result<(Arc<Program>, Vec<Vec<Values>>), Error> {
        let samples = batch::samples(input, "input", None)?;
        let sizes = batch::sizes(samples, self.programs.micro_batches());
        let program = self.programs.get(Purpose::Infer, sizes.len())?;
        Ok((program, vec![batch::scatter(input, &sizes)?]))
    }

    /// Those of the last stage, in all processes.
    fn outputs(&self, program: &Program, stepped: Stepped) -> Result<Values, Error> {
        let exits = stepped.outcome.exits.into_iter();
        let mut exits = exits.map(|((_, micro), sent)| (micro.index(), sent.values));
        let parts = if self.engine.are_spread() {
            let mut here: BTreeMap<usize, Values> = exits.collect();
            let mut parts = Vec::new();
            for replica in 0..self.engine.replicas() {
                let own = program.micro_batches_of(replica);
                if own.is_empty() {
                    continue;
                }
                let own = own.filter_map(|micro| here.remove(&micro)).collect();
                // It is nothing where another process has it.
                let own = self.in_one(own)?;
                parts.push(self.engine.broadcast(own, self.last_stage(replica))?);
            }
            parts
        } else {
            exits.by_ref().map(|(_, values)| values).collect()
        };
        self.in_one(parts)
    }

    /// The last stage, in a replica.
    fn last_stage(&self, replica: usize) -> CopyId {
        let stage = StageId(self.partition.stages().saturating_sub(1));
        CopyId { stage, replica }
    }

    /// The parts of an output, which copies of a stage may have left on several devices, on that
    /// of the first one.
    fn in_one(&self, parts: Vec<Values>) -> Result<Values, Error> {
        let outputs = batch::gather(batch::together(parts)?)?;
        let widened = |output| self.precision.widened(output);
        Ok(tch::no_grad(|| outputs.try_map(widened))?)
    }

    /// [`Pipeline::forward_values`] for a model of one output.
    ///
    /// # Errors
    /// As [`Pipeline::train_step`], and where there is not one output.
    pub fn forward(
        &mut self,
        input: impl TryInto<Values, Error: Into<Error>>,
    ) -> Result<Tensor, Error> {
        let outputs = self.forward_values(input)?;
        outputs.into_one().map_err(|error| {
            let why = format!("the model's outputs: {error}; use `forward_values`");
            SettingsError::invalid(Setting::Model, why).into()
        })
    }

    /// The layers of each stage.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The device of each stage; of several replicas those of the first one.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Copies of the pipeline; 1 without data parallelism.
    pub fn replicas(&self) -> usize {
        self.engine.replicas()
    }

    /// The schedule of a full training step, recomputes in their places; of several replicas that
    /// of the first one that has micro-batches.
    ///
    /// # Errors
    /// The schedule does not exist for this number of micro-batches.
    pub fn schedule(&mut self) -> Result<CheckedSchedule, Error> {
        let micro_batches = self.programs.micro_batches();
        let program = self.programs.get(
            Purpose::Train {
                input_gradient: false,
            },
            micro_batches,
        )?;
        Ok(program.schedule().clone())
    }

    /// The name of the schedule that was asked for, such as `1f1b`, or `auto` whatever that
    /// comes to.
    pub fn schedule_name(&self) -> &str {
        self.programs.name()
    }

    /// What is recomputed before the backward.
    pub fn recompute(&self) -> &Recompute {
        self.programs.recompute()
    }

    /// In which type of numbers layers and the loss function compute.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Training steps done: what random layers derive their numbers from.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What became of CUDA graphs on each stage; empty where nobody asked for them
    /// ([`PipelineBuilder::cuda_graphs`]).
    ///
    /// # Errors
    /// A stage's thread is gone.
    pub fn cuda_graphs(&mut self) -> Result<Vec<GraphUse>, Error> {
        let all = self
            .engine
            .on_one_of_each(|_, stage| Ok(stage.graph_use()))?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Looks at the stages of all processes together.
    fn join(&mut self, model: &Sequential) -> Result<(), Error> {
        check_names(&mut self.engine)?;
        self.ties = Ties::join(model, &self.partition, &mut self.engine)?;
        Ok(())
    }

    /// The processes that it is spread over; none where that is one.
    pub fn world(&self) -> Option<&Arc<World>> {
        self.engine.world()
    }

    /// Intra-op threads of each stage on the CPU.
    pub(crate) fn threads_per_stage(&self) -> usize {
        self.threads
    }

    /// How all processes hear that one of them wants to stop; none where there is one.
    pub(crate) fn stop_line(&self) -> Option<&Arc<StopLine>> {
        self.engine.stop_line()
    }

    /// All processes make this call, unless one of them says why it cannot.
    ///
    /// # Errors
    /// Somebody cannot, or makes another one, or is lost.
    pub(crate) fn agree(&self, call: &str, refused: Option<String>) -> Result<(), Error> {
        let own = refused.map_or(Ok(()), |why| Err(TorchError::new(why).into()));
        self.engine.agree_on_call(call, own)
    }

    /// This process cannot make the call that the others make next, which fails there, too.
    pub(crate) fn refuse(&self, why: &str) {
        // It is its own error that the caller tells.
        drop(self.agree("nothing", Some(why.to_owned())));
    }

    /// What each process has, in the order of ranks; of one process, its own.
    ///
    /// # Errors
    /// Another process has failed, or is lost.
    pub(crate) fn share<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, Error> {
        let all = self.engine.share(own);
        self.engine.conclude(all)
    }

    pub(crate) fn engine(&mut self) -> &mut Stages {
        &mut self.engine
    }

    /// Leaves no trace of the step that just ended.
    fn undo(&mut self) -> Result<(), Error> {
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
