//! Numbers on their way from a device to the host, which waits for them when they are used.

use std::cell::OnceCell;

use tch::{Kind, Tensor};

use super::stages::{Stages, Until};
use crate::torch::TorchError;
use crate::torch::streams::Backend;
#[cfg(test)]
use crate::torch::streams::{Event, Stream};

/// Numbers that are, or will be, in the host's memory.
#[derive(Debug)]
pub(super) struct Readback {
    /// `f64`, of one dimension.
    numbers: Tensor,
    /// When they are there; none where they are already.
    ready: Option<Until>,
}

impl Readback {
    /// Begins to copy `numbers`, on any device, to the host as `f64`. The host does not wait
    /// for an asynchronous device.
    pub(super) fn new(stages: &Stages, numbers: &Tensor) -> Result<Self, TorchError> {
        let numbers = tch::no_grad(|| numbers.f_reshape([-1])?.f_to_kind(Kind::Double))?;
        let (numbers, ready) = stages.to_host(numbers)?;
        Ok(Self { numbers, ready })
    }

    /// A number that waits for an event which its device does not know.
    #[cfg(test)]
    pub(super) fn of_a_failed_device() -> Self {
        Self {
            numbers: Tensor::from_slice(&[0.0]),
            ready: Some((
                Backend::Cuda,
                Stream { device: 0, id: 0 },
                Event::Recorded(0),
            )),
        }
    }

    /// Another handle to the same numbers.
    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            numbers: self.numbers.shallow_clone(),
            ready: self.ready.clone(),
        }
    }

    /// Whether [`Readback::read`] would not wait.
    pub(super) fn is_ready(&self) -> bool {
        match &self.ready {
            // One that failed has no more to wait for.
            Some((_, _, event)) => Backend::is_over(event).unwrap_or(true),
            None => true,
        }
    }

    /// The numbers, once they are there.
    ///
    /// # Errors
    /// The device failed in the work that makes them.
    pub(super) fn read(&self) -> Result<Vec<f64>, TorchError> {
        if let Some((backend, stream, event)) = &self.ready {
            let finished = backend.finish(event);
            finished.map_err(|error| backend.lost_in_reading(*stream, error))?;
        }
        Ok(Vec::try_from(&self.numbers)?)
    }
}

impl Drop for Readback {
    /// Page-locked memory is not to be freed any more once a device is lost.
    fn drop(&mut self) {
        if let Some((backend, ..)) = &self.ready
            && backend.lost().is_some()
        {
            std::mem::forget(std::mem::replace(&mut self.numbers, Tensor::new()));
        }
    }
}

/// A number that is read when it is used.
#[derive(Debug)]
pub(super) struct LateNumber {
    from: Readback,
    read: OnceCell<f64>,
}

impl LateNumber {
    pub(super) fn new(from: Readback) -> Self {
        let read = OnceCell::new();
        Self { from, read }
    }

    pub(super) fn known(number: f64) -> Self {
        let numbers = Tensor::from_slice(&[number]);
        Self {
            from: Readback {
                numbers,
                ready: None,
            },
            read: OnceCell::from(number),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.read.get().is_some() || self.from.is_ready()
    }

    pub(super) fn read(&self) -> Result<f64, TorchError> {
        if let Some(number) = self.read.get() {
            return Ok(*number);
        }
        let number = self.from.read()?.first().copied().unwrap_or(f64::NAN);
        Ok(*self.read.get_or_init(|| number))
    }
}
