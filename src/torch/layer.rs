//! What a stage is made of.

use std::fmt::Debug;

use gpipe_partitioner::MicroId;
use tch::{Device, Tensor, nn};

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
/// touched. Kernels that draw by themselves are beyond reach: attention with
/// dropout inside the fused kernel, and dropout inside cuDNN's recurrent nets.
pub trait Layer: Debug {
    /// Computes the outputs of one micro-batch.
    ///
    /// *Shapes*: dimension 0 of every tensor is the micro-batch's samples.
    ///
    /// # Errors
    /// Whatever stops the layer: it ends the step with an error that names the
    /// stage, the layer and the micro-batch. A panic is treated alike.
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values>;
}

impl<M: nn::ModuleT> Layer for M {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        Ok(self.forward_t(inputs.one()?, ctx.train()).into())
    }
}

/// What a layer may know about the pass it takes part in.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    pub(crate) train: bool,
    pub(crate) micro: MicroId,
    pub(crate) device: Device,
}

impl Context {
    /// Whether this is a training pass (dropout on, batch statistics used).
    pub fn train(&self) -> bool {
        self.train
    }

    /// The micro-batch, from 0.
    pub fn micro(&self) -> MicroId {
        self.micro
    }

    /// The device that the layer runs on.
    pub fn device(&self) -> Device {
        self.device
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
