//! Layers, the building blocks of a stage.

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;

use gpipe_partitioner::MicroId;
use tch::{Device, Kind, Tensor, nn};

use super::ffi::Autocast;
use super::precision::Precision;
use super::skips::SkipBox;
use super::step_state::{StepState, StepStates};
use super::values::Values;

/// A layer: several tensors in, several out.
///
/// Every [`nn::ModuleT`] that takes and gives one tensor is a layer already
/// (linear, convolutions, norms, closures made with [`nn::func`], …). Implement
/// this trait for what needs more: several values, errors, the micro-batch.
///
/// *Determinism*: random numbers that a layer draws with libtorch while it is
/// built depend on (seed, layer name); those it draws in a forward pass on (seed,
/// step, layer name, micro-batch) and the order inside the layer. Neither depends
/// on the partition or the schedule, and the caller's own generators are not
/// touched. Kernels with a generator of their own are the exception: attention with
/// dropout inside the fused kernel, and dropout inside cuDNN's recurrent nets.
#[doc(alias = "nn.Module")]
pub trait Layer: Debug {
    /// Computes the outputs of one micro-batch.
    ///
    /// *Shapes*: dimension 0 of every tensor is the micro-batch's samples.
    ///
    /// # Errors
    /// Whatever stops the layer: it ends the step with an error that names the
    /// stage, the layer and the micro-batch. A panic is treated alike.
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values>;

    /// The layers that this one is made of and runs; none where there are no layers in it.
    /// A layer that names all of them is [graph-safe](Layer::graph_safe) if they are.
    fn parts(&self) -> Vec<&dyn Layer> {
        Vec::new()
    }

    /// Whether a forward pass in training can be captured once and replayed with other numbers
    /// ([`PipelineBuilder::cuda_graphs`](crate::PipelineBuilder::cuda_graphs)): it depends only on
    /// its input tensors and parameters, and has no effect on the host (counting, reading numbers).
    /// By default true if the layer has [parts](Layer::parts) and all of them are safe; a layer
    /// without parts that does not override this runs without graphs.
    #[doc(alias = "CUDA graph")]
    fn graph_safe(&self) -> bool {
        let parts = self.parts();
        !parts.is_empty() && parts.into_iter().all(Layer::graph_safe)
    }
}

impl<M: nn::ModuleT> Layer for M {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        Ok(self.forward_t(inputs.one()?, ctx.train()).into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// Information for a layer about the current pass, and the place to stash and pop values that skip
/// layers.
#[derive(Debug)]
pub struct Context {
    pub(crate) train: bool,
    pub(crate) micro: MicroId,
    /// Whether the layer asked for the micro-batch's number.
    pub(crate) asked: Cell<bool>,
    pub(crate) device: Device,
    pub(crate) recomputing: bool,
    pub(crate) past: Option<usize>,
    pub(crate) precision: Precision,
    pub(crate) skips: SkipBox,
    /// Number of the layer within its stage, and the state that the stage's layers gather.
    pub(crate) layer: usize,
    pub(crate) step_states: StepStates,
    /// Whether the layer, or one in it, gathers state.
    pub(crate) gathered: Cell<bool>,
}

impl Context {
    /// Whether this is a training pass (dropout on, batch statistics used).
    pub fn train(&self) -> bool {
        self.train
    }

    /// The micro-batch, from 0.
    pub fn micro(&self) -> MicroId {
        self.asked.set(true);
        self.micro
    }

    pub(crate) fn asked_for_micro(&self) -> bool {
        self.asked.get()
    }

    /// Tells the stage that this forward pass adds to `state`, which is committed at the end
    /// of the step if the step counts, and discarded otherwise. Only training passes count;
    /// a pass that [repeats](Context::recomputing) an earlier one should add nothing.
    ///
    /// Where steps may be skipped for numbers that are not finite, the host waits for the
    /// devices after a step in which a layer gathered something.
    pub fn gathers<T: StepState + 'static>(&self, state: &Rc<T>) {
        self.gathered.set(true);
        if self.train {
            self.step_states.add(self.layer, state);
        }
    }

    pub(crate) fn has_gathered(&self) -> bool {
        self.gathered.get()
    }

    /// The device that the layer runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether this forward pass repeats an earlier one, whose activations were not kept: random
    /// numbers are the same, and layers that count forward passes must not count it again. The
    /// buffers have their state from before the earlier pass, and changes to them are undone.
    pub fn recomputing(&self) -> bool {
        self.recomputing
    }

    /// Where tokens come one after the other ([`Pipeline::decode`](crate::Pipeline::decode)): how
    /// many of the sequence came in earlier passes, which layers that look back have
    /// [cached](crate::layers::KvCache); `None` in every other pass.
    pub fn past(&self) -> Option<usize> {
        self.past
    }

    /// Number type in which the pipeline computes.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Runs `f` without autocast, for what a shorter type would lose: operators compute in
    /// the types of their operands. Tensors of a shorter type stay so unless `f` converts
    /// them.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn full_precision<T>(&self, f: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        if self.precision == Precision::F32 {
            return f();
        }
        let _off = Autocast::open(self.device, Kind::Float)?;
        f()
    }

    /// Leaves a tensor (or an absent value, `None`) for the layers that pop `name`. They get
    /// a snapshot: later changes in place do not reach it.
    ///
    /// # Errors
    /// The model does not declare it ([`Sequential::stashes`](crate::Sequential::stashes)),
    /// or the layer has done it already.
    #[doc(alias = "skip connection")]
    #[doc(alias = "portal")]
    pub fn stash<'a>(
        &self,
        name: &str,
        value: impl Into<Option<&'a Tensor>>,
    ) -> anyhow::Result<()> {
        self.skips.stash(name, value.into())
    }

    /// Takes what an earlier layer stashed as `name`; `None` where it was absent.
    ///
    /// # Errors
    /// The model does not declare it ([`Sequential::pops`](crate::Sequential::pops)),
    /// or the layer has done it already.
    pub fn pop(&self, name: &str) -> anyhow::Result<Option<Tensor>> {
        self.skips.pop(name)
    }

    /// Zeroes each element with probability `p` and scales the others by
    /// 1/(1 − p); in inference, or with `p` = 0, gives the input back.
    ///
    /// # Errors
    /// `p` is not a probability below 1, or libtorch refuses.
    pub fn dropout(&self, input: &Tensor, p: f64) -> anyhow::Result<Tensor> {
        anyhow::ensure!(
            (0.0..1.0).contains(&p),
            "dropout probability {p} is not in [0, 1)"
        );
        if !self.train || p == 0.0 {
            return Ok(input.shallow_clone());
        }
        Ok(input.f_dropout(p, true)?)
    }
}
