//! Optimizer updates of one stage's parameters, through libtorch's fused kernels.

use tch::Tensor;

use super::error::TorchError;
use super::ffi::{self, AdamWNumbers, SgdNumbers};

/// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of gradients.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Share of a weight that is taken off per unit of learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
        }
    }
}

/// Stochastic gradient descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// Share of the former update that is kept.
    pub momentum: f64,
    /// Share of the new gradient that the momentum leaves out.
    pub dampening: f64,
    /// Added to the gradient, times the weight.
    pub weight_decay: f64,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }
    }
}

/// Which update, with its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum OptimizerKind {
    /// See [`AdamW`].
    AdamW(AdamW),
    /// See [`Sgd`].
    Sgd(Sgd),
}

impl OptimizerKind {
    /// The learning rate.
    pub fn lr(&self) -> f64 {
        match self {
            Self::AdamW(adamw) => adamw.lr,
            Self::Sgd(sgd) => sgd.lr,
        }
    }

    /// Sets the learning rate.
    pub fn set_lr(&mut self, lr: f64) {
        match self {
            Self::AdamW(adamw) => adamw.lr = lr,
            Self::Sgd(sgd) => sgd.lr = lr,
        }
    }
}

impl From<AdamW> for OptimizerKind {
    fn from(adamw: AdamW) -> Self {
        Self::AdamW(adamw)
    }
}

impl From<Sgd> for OptimizerKind {
    fn from(sgd: Sgd) -> Self {
        Self::Sgd(sgd)
    }
}

/// What an optimizer remembers of each parameter of one stage.
#[derive(Debug, Default)]
pub(crate) struct OptimizerState {
    slots: Vec<Option<Slot>>,
}

/// One parameter's state: empty vectors of tensors are never stored.
#[derive(Debug)]
struct Slot {
    /// Running mean (`AdamW`), or momentum buffer (SGD).
    first: Tensor,
    /// Running mean of squares and number of steps (`AdamW` only).
    second: Option<(Tensor, Tensor)>,
    /// Nothing has been written to the momentum buffer yet.
    fresh: bool,
}

impl OptimizerState {
    /// Applies the gradients that the parameters have accumulated and clears
    /// them. Parameters without a gradient are left alone.
    pub(crate) fn step(
        &mut self,
        kind: &OptimizerKind,
        parameters: &[Tensor],
    ) -> Result<(), TorchError> {
        self.slots.resize_with(parameters.len(), || None);
        let mut chosen = Vec::new();
        for (index, parameter) in parameters.iter().enumerate() {
            if let Some(grad) = ffi::take_grad(parameter)? {
                chosen.push((index, parameter.shallow_clone(), grad));
            }
        }
        if chosen.is_empty() {
            return Ok(());
        }
        match kind {
            OptimizerKind::AdamW(adamw) => self.adamw(adamw, &chosen),
            OptimizerKind::Sgd(sgd) => self.sgd(sgd, &chosen),
        }
    }

    fn adamw(&mut self, adamw: &AdamW, chosen: &[Chosen]) -> Result<(), TorchError> {
        let (parameters, grads) = split(chosen);
        let (mut means, mut squares, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for (index, parameter, _) in chosen {
            let slot = self.slot(*index, parameter)?;
            if slot.second.is_none() {
                let step = Tensor::f_zeros([], (tch::Kind::Float, parameter.device()))?;
                slot.second = Some((zeros(parameter)?, step));
            }
            if let Some((square, step)) = &slot.second {
                squares.push(square.shallow_clone());
                steps.push(step.shallow_clone());
            }
            means.push(slot.first.shallow_clone());
        }
        let numbers = AdamWNumbers {
            lr: adamw.lr,
            beta1: adamw.beta1,
            beta2: adamw.beta2,
            weight_decay: adamw.weight_decay,
            eps: adamw.eps,
        };
        ffi::fused_adamw(&parameters, &grads, &means, &squares, &steps, numbers)
    }

    fn sgd(&mut self, sgd: &Sgd, chosen: &[Chosen]) -> Result<(), TorchError> {
        if sgd.momentum == 0.0 {
            let (parameters, grads) = split(chosen);
            return ffi::fused_sgd(&parameters, &grads, &[], numbers(sgd, false));
        }
        // A parameter's first update fills its buffer instead of blending into it.
        for first in [true, false] {
            let mut group = Vec::new();
            let mut buffers = Vec::new();
            for (index, parameter, grad) in chosen {
                let slot = self.slot(*index, parameter)?;
                if slot.fresh == first {
                    buffers.push(slot.first.shallow_clone());
                    group.push((*index, parameter.shallow_clone(), grad.shallow_clone()));
                }
            }
            let (parameters, grads) = split(&group);
            if !parameters.is_empty() {
                ffi::fused_sgd(&parameters, &grads, &buffers, numbers(sgd, first))?;
            }
        }
        for (index, parameter, _) in chosen {
            self.slot(*index, parameter)?.fresh = false;
        }
        Ok(())
    }

    fn slot(&mut self, index: usize, parameter: &Tensor) -> Result<&mut Slot, TorchError> {
        let slot = &mut self.slots[index];
        if slot.is_none() {
            *slot = Some(Slot {
                first: zeros(parameter)?,
                second: None,
                fresh: true,
            });
        }
        slot.as_mut()
            .ok_or_else(|| TorchError::new("an optimizer slot vanished"))
    }
}

/// Index among the stage's parameters, parameter, gradient.
type Chosen = (usize, Tensor, Tensor);

fn split(chosen: &[Chosen]) -> (Vec<Tensor>, Vec<Tensor>) {
    chosen
        .iter()
        .map(|(_, parameter, grad)| (parameter.shallow_clone(), grad.shallow_clone()))
        .unzip()
}

fn zeros(parameter: &Tensor) -> Result<Tensor, TorchError> {
    Ok(tch::no_grad(|| parameter.f_zeros_like())?)
}

fn numbers(sgd: &Sgd, first: bool) -> SgdNumbers {
    SgdNumbers {
        lr: sgd.lr,
        momentum: sgd.momentum,
        dampening: sgd.dampening,
        weight_decay: sgd.weight_decay,
        nesterov: sgd.nesterov,
        first,
    }
}
