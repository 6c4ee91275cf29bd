//! The main type: a model over devices, trained one mini-batch at a time.

mod builder;
mod check_step;
mod clip;
mod device_loss_scale;
mod device_times;
mod finite_check;
mod host_wait;
mod inference;
mod local_steps;
mod loss_scale;
mod losses;
mod memory;
mod programs;
mod ranks;
mod readback;
pub mod report;
mod snapshot;
mod stages;
mod step;
mod step_message;
mod ties;
mod weights;
mod wiring;

use std::sync::Arc;

use gpipe_partitioner::{CheckedSchedule, Partition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Device;

use crate::error::Error;
use crate::world::World;
use crate::{GraphUse, NonFinite, Precision, Recompute, Sequential, TorchError};

pub use builder::PipelineBuilder;
pub(crate) use builder::check_model;
use builder::check_names;
pub use clip::GradNorm;
pub use loss_scale::LossScale;
pub use memory::{MemoryReport, MemoryUse};
pub use report::{StepNumbers, StepReport};
pub use snapshot::{Draws, Fitting, Form, ShardOf};

pub use local_steps::LocalState;
use loss_scale::Scaler;
use programs::Programs;
pub use ranks::StopLine;
use stages::Stages;
use ties::Ties;
use wiring::Purpose;

/// A model cut into stages, each on its own device, that trains as one.
///
/// ```
/// use gpipe::{Optimizer, Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}, optim::AdamW};
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

    /// Returns a builder with a default for each setting.
    pub fn builder(model: Sequential) -> PipelineBuilder {
        PipelineBuilder::new(model)
    }

    /// Returns the layers of each stage.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns the device of each stage; with several replicas, those of the first one.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the number of copies of the pipeline; 1 without data parallelism.
    pub fn replicas(&self) -> usize {
        self.engine.replicas()
    }

    /// Returns the schedule of a full training step, with its recomputes; with several replicas,
    /// that of the first one that has micro-batches.
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
        Ok(program.schedule_for_now())
    }

    /// Returns the name of the requested schedule, such as `1f1b`, or `auto` for any computed one.
    pub fn schedule_name(&self) -> &str {
        self.programs.name()
    }

    /// Returns what is recomputed before the backward.
    pub fn recompute(&self) -> &Recompute {
        self.programs.recompute()
    }

    /// Returns the number type in which layers and the loss function compute.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the number of training steps done, from which random layers derive their numbers.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the use of CUDA graphs on each stage; empty if they were not requested
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

    /// Inspects the stages of all processes together: names and ties.
    fn join(&mut self, model: &Sequential) -> Result<(), Error> {
        check_names(&mut self.engine)?;
        self.ties = Ties::join(model, &self.partition, &mut self.engine)?;
        Ok(())
    }

    /// Returns the world of processes that it is spread over; `None` for a single process.
    pub fn world(&self) -> Option<&Arc<World>> {
        self.engine.world()
    }

    /// Returns the intra-op threads of each stage on the CPU.
    pub fn threads_per_stage(&self) -> usize {
        self.threads
    }

    /// Returns the channel by which any process asks all to stop; `None` for a single process.
    pub fn stop_line(&self) -> Option<&Arc<StopLine>> {
        self.engine.stop_line()
    }

    /// Makes this call in all processes, unless one of them gives a reason why it cannot.
    ///
    /// # Errors
    /// A process cannot, makes another call, or is lost.
    pub fn agree(&self, call: &str, refused: Option<String>) -> Result<(), Error> {
        let own = refused.map_or(Ok(()), |why| Err(TorchError::new(why).into()));
        self.engine.agree_on_call(call, own)
    }

    /// Makes the next call of the other processes fail there too, as this process cannot make it.
    pub fn refuse(&self, why: &str) {
        // The caller reports its own error.
        drop(self.agree("nothing", Some(why.to_owned())));
    }

    /// Gathers a value from each process, in the order of ranks; with one process, its own.
    ///
    /// # Errors
    /// Another process failed, or is lost.
    pub fn share<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, Error> {
        let all = self.engine.share(own);
        self.engine.conclude(all)
    }

    /// Waits for all that the devices were told, as long as the caller has patience.
    ///
    /// # Errors
    /// A device is not through in time.
    pub fn in_time(&mut self) -> Result<(), Error> {
        Ok(self.engine.in_time()?)
    }

    pub(crate) fn engine(&mut self) -> &mut Stages {
        &mut self.engine
    }
}
