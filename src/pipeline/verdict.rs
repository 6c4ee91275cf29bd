//! Whether a step counts, where the devices that know it work by themselves.
//!
//! A step with a number that is not finite is to be as if it had never been, on all stages.
//! Where the host looks, it undoes the step. Where it does not wait for the devices, these
//! are told what to do in both cases: each stage has the *verdict* as a number on its
//! device (1: the step does not count), and
//!
//! 1. clipping leaves gradients alone whose norm is not finite;
//! 2. the optimizer's kernels leave parameters and what is remembered of them as they are
//!    where the verdict is 1, and buffers get back what they held;
//! 3. whoever wants to see parameters, buffers or gradients before that, or adds those of
//!    another step to them, makes the stage wait for its verdict, and it undoes the step by
//!    itself or does not;
//! 4. the loss scale is a number on a device too, and follows the verdict there. The host
//!    does the same arithmetic when it comes to know the verdicts, and so knows the scale,
//!    and when it cannot become smaller.
//!
//! All stages have the same verdict, of the gradients of all: no step is half done.

use std::sync::Arc;

use gpipe_partitioner::StageId;
use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};

use super::loss_scale::{LARGEST, SMALLEST};
use super::losses::Losses;
use super::readback::Readback;
use super::stages::Stages;
use crate::error::Error;
use crate::torch::TorchError;

/// What the host will know of a step.
#[doc(alias = "found_inf")]
#[derive(Debug)]
pub(super) struct Verdict {
    /// The loss scale of the step (1 without), then the norm of each gradient.
    numbers: Readback,
    /// Whose gradients they are.
    names: Arc<[String]>,
    /// The losses, where they count.
    losses: Option<Losses>,
}

/// What the devices know.
#[derive(Debug)]
pub(super) struct There {
    /// 1 where the step does not count, else 0: `f32`.
    pub(super) found: Tensor,
    /// What gradients must still be multiplied with, an `f32`.
    pub(super) factor: Option<Tensor>,
}

/// A loss scale on a device.
#[derive(Debug)]
pub(super) struct ScaleThere {
    /// `f32`.
    scale: Tensor,
    /// Good steps in a row since it grew: `i32`.
    good_steps: Tensor,
    growth_interval: i64,
}

impl Verdict {
    /// Of the step that just ended. None where the host has to look: gradients are not
    /// dense and `f32`, earlier ones wait to be added to, layers gather what only counts
    /// after a good step.
    pub(super) fn of_step(
        stages: &mut Stages,
        losses: &Losses,
        losses_count: bool,
        scale: Option<&ScaleThere>,
    ) -> Result<Option<(Self, There)>, Error> {
        let parts = stages.on_each(|_, stage| stage.deferrable_norms())?;
        let Some(parts) = parts.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let (names, norms): (Vec<Vec<String>>, Vec<Tensor>) = parts.into_iter().unzip();
        let (blob, there) = tch::no_grad(|| judge(&norms, losses, losses_count, scale))?;
        // Where the losses are.
        let last = StageId(norms.len().saturating_sub(1));
        for tensor in std::iter::once(&there.found).chain(&there.factor) {
            stages.made(tensor, last)?;
        }
        let verdict = Self {
            numbers: Readback::new(stages, &blob)?,
            names: names.concat().into(),
            losses: losses_count.then(|| losses.share()),
        };
        Ok(Some((verdict, there)))
    }

    /// The same for somebody else.
    pub(super) fn share(&self) -> Self {
        Self {
            numbers: self.numbers.share(),
            names: Arc::clone(&self.names),
            losses: self.losses.as_ref().map(Losses::share),
        }
    }

    /// Whether [`Verdict::read`] would not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.numbers.is_ready() && self.losses.as_ref().is_none_or(Losses::is_ready)
    }

    /// What was not finite, in words, and the loss scale of the step.
    pub(super) fn read(&self) -> Result<(Option<String>, f64), TorchError> {
        let numbers = self.numbers.read()?;
        let (scale, norms) = numbers.split_first().unwrap_or((&f64::NAN, &[]));
        if let Some(losses) = &self.losses {
            let loss = losses.total()?;
            if !loss.is_finite() {
                return Ok((Some(format!("the loss ({loss})")), *scale));
            }
        }
        let bad = norms.iter().position(|norm| !norm.is_finite());
        let name = bad.and_then(|place| self.names.get(place));
        Ok((name.map(|name| format!("the gradient of `{name}`")), *scale))
    }
}

impl There {
    /// Tells each stage.
    pub(super) fn tell(self, stages: &mut Stages) -> Result<(), Error> {
        // Tensors go from thread to thread, but are not shared.
        let own = Mutex::new(self);
        stages.on_each(move |_, stage| {
            let (found, factor) = {
                let own = own.lock();
                let factor = own.factor.as_ref().map(Tensor::shallow_clone);
                (own.found.shallow_clone(), factor)
            };
            stage.accumulator().defer(&found, factor.as_ref())
        })?;
        Ok(())
    }
}

impl ScaleThere {
    pub(super) fn new(
        device: Device,
        scale: f64,
        good_steps: u64,
        growth_interval: u64,
    ) -> Result<Self, TorchError> {
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        // It grows when the count comes to the interval, and not behind it.
        let good_steps = whole(good_steps.min(growth_interval - 1));
        Ok(Self {
            scale: Tensor::f_full([], scale, (Kind::Float, device))?,
            good_steps: Tensor::f_full([], good_steps, (Kind::Int, device))?,
            growth_interval: whole(growth_interval),
        })
    }

    /// The number that the next step's loss is multiplied with.
    pub(super) fn handle(&self) -> Tensor {
        self.scale.shallow_clone()
    }

    /// Follows a verdict.
    pub(super) fn follow(&mut self, found: &Tensor) -> Result<(), TorchError> {
        let _ = tch::no_grad(|| {
            let found = found.f_to_device(self.scale.device())?;
            let (good, interval) = (&self.good_steps, self.growth_interval);
            let _ = (self.scale).f_internal_amp_update_scale_(good, &found, 2.0, 0.5, interval)?;
            self.scale.f_clamp_(SMALLEST, LARGEST)
        })?;
        Ok(())
    }
}

/// What the host will want to read, and what stages have to know.
fn judge(
    norms: &[Tensor],
    losses: &Losses,
    losses_count: bool,
    scale: Option<&ScaleThere>,
) -> Result<(Tensor, There), TorchError> {
    let here = losses.there().device();
    let norms = norms.iter().map(|own| own.f_to_device(here));
    let norms: Vec<Tensor> = norms.collect::<Result<_, _>>()?;
    let norms = Tensor::f_cat(&norms, 0)?;
    let mut finite = norms.f_isfinite()?.f_all()?;
    if losses_count {
        let of_losses = losses.there().f_isfinite()?.f_all()?;
        finite = finite.f_logical_and(&of_losses)?;
    }
    let own = match scale {
        Some(own) => own.scale.f_to_device(here)?.f_to_kind(Kind::Double)?,
        None => Tensor::f_ones([], (Kind::Double, here))?,
    };
    let factor = match (losses.scale(), scale) {
        (None, None) => None,
        (weights, _) => {
            let weights = own.f_full_like(weights.unwrap_or(1.0))?;
            Some(weights.f_div(&own)?.f_to_kind(Kind::Float)?)
        }
    };
    let blob = Tensor::f_cat(&[own.f_reshape([1])?, norms], 0)?;
    let found = finite.f_logical_not()?.f_to_kind(Kind::Float)?;
    Ok((blob, There { found, factor }))
}
