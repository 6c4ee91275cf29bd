//! What a stage is made of.

use std::fmt::Debug;

use gpipe_partitioner::MicroId;
use tch::{Device, Tensor, nn};

use super::error::TorchError;
use super::ffi::Generator;
use super::rng;
use super::values::Values;

/// A layer: several tensors in, several out.
///
/// Every [`nn::ModuleT`] that takes and gives one tensor is a layer already
/// (linear, convolutions, norms, closures made with [`nn::func`], …). Implement
/// this trait for what needs more: several values, errors, or randomness that
/// does not depend on the partition ([`Context::dropout`]).
pub trait Layer: Debug {
    /// Computes the outputs of one micro-batch.
    ///
    /// *Shapes*: dimension 0 of every tensor is the micro-batch's samples.
    ///
    /// # Errors
    /// Whatever stops the layer: it ends the step with an error that names the
    /// stage, the layer and the micro-batch. A panic is treated alike.
    fn forward(&self, inputs: Values, ctx: &mut Context) -> anyhow::Result<Values>;
}

impl<M: nn::ModuleT> Layer for M {
    fn forward(&self, inputs: Values, ctx: &mut Context) -> anyhow::Result<Values> {
        Ok(self.forward_t(inputs.one()?, ctx.train()).into())
    }
}

/// What a layer may know about the pass it takes part in.
#[derive(Debug)]
pub struct Context {
    train: bool,
    micro: MicroId,
    device: Device,
    seed: u64,
    generator: Option<Generator>,
}

impl Context {
    /// `seed` is that of (run, step, layer, micro-batch).
    pub(crate) fn new(train: bool, micro: MicroId, device: Device, seed: u64) -> Self {
        Self { train, micro, device, seed, generator: None }
    }

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
    /// *Determinism*: the mask depends on (seed, step, layer name, micro-batch)
    /// and the order of calls inside the layer, on nothing else.
    ///
    /// # Errors
    /// `p` is not a probability below 1, or libtorch refuses.
    pub fn dropout(&mut self, input: &Tensor, p: f64) -> anyhow::Result<Tensor> {
        anyhow::ensure!((0.0..1.0).contains(&p), "dropout probability {p} is not in [0, 1)");
        if !self.train || p == 0.0 {
            return Ok(input.shallow_clone());
        }
        let mut mask = self.generator()?.bernoulli(input, 1.0 - p)?;
        Ok(input.f_mul(&mask.f_div_scalar_(1.0 - p)?)?)
    }

    fn generator(&mut self) -> Result<&mut Generator, TorchError> {
        if self.generator.is_none() {
            self.generator = Some(Generator::new(self.device, self.seed)?);
        }
        self.generator.as_mut().ok_or_else(|| TorchError::new("no generator"))
    }
}

/// Makes the context of one layer's pass: `layer_seed` comes from [`rng::named_seed`].
pub(crate) fn context(
    train: bool,
    micro: MicroId,
    device: Device,
    layer_seed: u64,
    step: u64,
) -> Context {
    Context::new(train, micro, device, rng::pass_seed(layer_seed, step, micro.index()))
}
