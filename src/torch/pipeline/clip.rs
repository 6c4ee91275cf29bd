//! Gradient clipping by the norm of the whole model.

use parking_lot::Mutex;

use super::Pipeline;
use super::readback::{LateNumber, Readback};
use super::stages::{in_model_order, of_all_in_order};
use crate::error::{Error, Setting, SettingsError};
use crate::{clip_factor, clip_there, operators, total_norm};

/// 2-norm of all gradients together, before clipping: a number that may still be on an asynchronous
/// device.
#[doc(alias = "clip_grad_norm_")]
#[derive(Debug)]
pub struct GradNorm(LateNumber);

impl GradNorm {
    /// Returns the number; waits for the device if it is not done.
    ///
    /// # Errors
    /// The device failed in its work, or has not done it within the
    /// [patience](crate::PipelineBuilder::patience); then the number can be read later.
    pub fn read(&self) -> Result<f64, Error> {
        Ok(self.0.read()?)
    }

    /// Returns whether the number is available, so that reading it does not wait.
    pub fn is_ready(&self) -> bool {
        self.0.is_ready()
    }
}

impl Pipeline {
    /// Limits the 2-norm of all gradients together to `max_norm`, as PyTorch's `clip_grad_norm_`
    /// does: if the norm is larger, every gradient is multiplied by `max_norm / (norm + 1e-6)`.
    /// Returns the norm before clipping. Call it between [`Pipeline::train_step`] and the
    /// optimizer's step.
    ///
    /// With [`local_steps`](crate::PipelineBuilder::local_steps) each replica is limited by its own
    /// norm, and the mean of the norms is returned.
    ///
    /// If the norm is NaN or infinite, it is returned and the gradients do not change. A `max_norm`
    /// of infinity only measures.
    ///
    /// *Determinism*: the same bits for every cut and schedule.
    ///
    /// ```
    /// # use gpipe::{Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}};
    /// # let model = Sequential::new().layer("head", |p| nn::linear(p, 8, 2, Default::default()));
    /// # let mut pipe = Pipeline::new(model, &[Device::Cpu], 2)?;
    /// # let x = Tensor::ones([4, 8], (Kind::Float, Device::Cpu));
    /// # let y = Tensor::zeros([4, 2], (Kind::Float, Device::Cpu));
    /// # let loss_fn = |out: &Tensor, y: &Tensor| out.mse_loss(y, gpipe::tch::Reduction::Mean);
    /// pipe.train_step(&x, &y, loss_fn)?;
    /// let before = pipe.clip_grad_norm(0.1)?;
    /// let after = pipe.clip_grad_norm(f64::INFINITY)?;
    /// assert!(after <= before && after < 0.1001);
    /// # Ok::<(), gpipe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Settings`] for a negative or NaN `max_norm`. A sparse gradient.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<f64, Error> {
        self.clip_gradients(max_norm)?.read()
    }

    /// Clips as [`Pipeline::clip_grad_norm`] does, without waiting for asynchronous devices: they
    /// clip without the host, which reads the norm when asked to.
    ///
    /// If a stage is on the CPU, or gradients have another type than `f32`, the host waits all the
    /// same.
    ///
    /// # Errors
    /// As [`Pipeline::clip_grad_norm`].
    pub fn clip_gradients(&mut self, max_norm: f64) -> Result<GradNorm, Error> {
        let call = format!("clip_gradients({max_norm})");
        self.engine.begin_call(&call, checked(max_norm))?;
        if self.engine.train_alone() {
            let mean = self.clip_each(max_norm)?;
            return Ok(GradNorm(LateNumber::known(mean)));
        }
        if self.engine.all_async()
            && let Some(norm) = self
                .clip_there(max_norm)
                .map_err(|error| self.engine.explain("clipping the gradients", error))?
        {
            return Ok(GradNorm(norm));
        }
        let total = self.clip_on_host(max_norm)?;
        Ok(GradNorm(LateNumber::known(total)))
    }

    /// Returns the norm before clipping, once the host has seen it. The norms are part of the vote
    /// of all processes; if the total is within the limit, nothing else is needed.
    fn clip_on_host(&mut self, max_norm: f64) -> Result<f64, Error> {
        // Sent as bits, which also represent a norm that is not finite.
        let norms = self.engine.of_owners_here(|_, stage| {
            let norms = stage.committed()?.norms()?.into_iter();
            let bits = norms.map(|(place, norm)| (place, norm.to_bits()));
            Ok(bits.collect::<Vec<_>>())
        });
        let told = self.engine.conclude_telling(norms.map(|norms| ((), norms)));
        let norms = of_all_in_order(told?.1).into_iter().map(f64::from_bits);
        let total = total_norm(&norms.collect::<Vec<f64>>());
        let factor = clip_factor(max_norm, total);
        if total.is_finite() && factor < 1.0 {
            let clipped = self
                .engine
                .on_each(move |_, stage| Ok(stage.committed()?.scale(factor)?));
            self.engine.conclude(clipped)?;
        }
        Ok(total)
    }

    /// Clips each replica by itself when replicas train alone; returns the mean norm of those with
    /// gradients.
    fn clip_each(&mut self, max_norm: f64) -> Result<f64, Error> {
        let norms = self.engine.on_owners(|_, stage| {
            let norms = stage.committed()?.norms()?.into_iter();
            Ok(norms.map(|(_, norm)| norm.to_bits()).collect::<Vec<u64>>())
        });
        let here = norms.map(|norms| {
            let placed = norms.into_iter();
            let placed = placed.map(|(copy, norms)| ((copy.replica, copy.stage.index()), norms));
            ((), placed.collect::<Vec<_>>())
        });
        let ((), told) = self.engine.conclude_telling(here)?;
        let mut all: Vec<_> = told.into_iter().flatten().collect();
        all.sort_by_key(|(copy, _)| *copy);
        let mut of_replicas = vec![Vec::new(); self.engine.replicas()];
        for ((replica, _), norms) in all {
            of_replicas[replica].extend(norms.into_iter().map(f64::from_bits));
        }
        let totals: Vec<f64> = of_replicas.iter().map(|own| total_norm(own)).collect();
        let factor = move |total: f64| {
            let factor = clip_factor(max_norm, total);
            (total.is_finite() && factor < 1.0).then_some(factor)
        };
        let factors: Vec<Option<f64>> = totals.iter().copied().map(factor).collect();
        let clipped = self.engine.on_each(move |_, stage| {
            if let Some(factor) = factors[stage.replica()] {
                stage.committed()?.scale(factor)?;
            }
            Ok(())
        });
        self.engine.conclude(clipped)?;
        let pairs = totals.iter().zip(&of_replicas);
        let some: Vec<f64> = pairs
            .filter(|(_, own)| !own.is_empty())
            .map(|(total, _)| *total)
            .collect();
        let count = some.len().max(1) as f64;
        Ok(some.iter().fold(0.0, |sum, own| sum + own) / count)
    }

    /// Clips on the devices alone, if possible.
    fn clip_there(&mut self, max_norm: f64) -> Result<Option<LateNumber>, Error> {
        let _watch = self.engine.watch()?;
        let norms = self.engine.on_owners(|_, stage| {
            stage.acts(c"clipping the gradients");
            let norms = stage.committed_unless_deferred()?.norms_on_device()?;
            let placed = |place: usize| (place, ());
            Ok(norms.map(|(places, norms)| (places.into_iter().map(placed).collect(), norms)))
        })?;
        let norms = norms.into_iter().map(|(copy, norms)| Some((copy, norms?)));
        let Some(norms) = norms.collect() else {
            return Ok(None);
        };
        let (total, factor) = operators(|| clip_there(&in_model_order(norms)?.1, max_norm))?;
        let norm = Readback::new(&self.engine, &total, "the norm of the gradients")?;
        if max_norm.is_finite() {
            // Tensors may move between threads, but not be shared.
            let factor = Mutex::new(factor);
            self.engine.on_each(move |_, stage| {
                let factor = factor.lock().shallow_clone();
                stage.committed_unless_deferred()?.scale_by(&factor)
            })?;
        }
        Ok(Some(LateNumber::new(norm)))
    }
}

fn checked(max_norm: f64) -> Result<(), Error> {
    if max_norm >= 0.0 {
        return Ok(());
    }
    let why = format!("gradients cannot be clipped to a norm of {max_norm}: it must be 0 or more");
    Err(SettingsError::invalid(Setting::MaxNorm, why).into())
}
