//! Numbers in transit from a device to the host, which waits for them when they are read.

use std::cell::OnceCell;

use tch::{Kind, Tensor};

use super::host_wait::HostWait;
use super::stages::Stages;
use crate::TorchError;
use crate::streams::lost;

/// Numbers that are, or will be, in host memory.
#[derive(Debug)]
pub(super) struct Readback {
    /// `f64`, one-dimensional.
    numbers: Tensor,
    /// Description for messages.
    what: &'static str,
    /// Their arrival; `None` if they are there already.
    ready: Option<HostWait>,
}

impl Readback {
    /// Starts to copy `numbers` from any device to the host as `f64`. The host does not wait for an
    /// asynchronous device.
    pub(super) fn new(
        stages: &Stages,
        numbers: &Tensor,
        what: &'static str,
    ) -> Result<Self, TorchError> {
        let numbers = tch::no_grad(|| numbers.f_reshape([-1])?.f_to_kind(Kind::Double))?;
        let (numbers, ready) = stages.to_host(numbers)?;
        Ok(Self {
            numbers,
            what,
            ready,
        })
    }

    /// Makes numbers that cannot be read.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn of_a_failed_device() -> Self {
        Self {
            numbers: Tensor::from_slice(&[0.0]).reshape([1, 1]),
            what: "numbers",
            ready: None,
        }
    }

    /// Returns another handle to the same numbers.
    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            numbers: self.numbers.shallow_clone(),
            what: self.what,
            ready: self.ready.clone(),
        }
    }

    /// Returns whether [`Readback::read`] would not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.as_ref().is_none_or(HostWait::is_over)
    }

    /// Waits for the numbers and returns them.
    ///
    /// # Errors
    /// The device failed in the work that computes them, or did not finish in time.
    pub(super) fn read(&self) -> Result<Vec<f64>, TorchError> {
        if let Some(ready) = &self.ready {
            ready.finish(self.what)?;
        }
        Ok(Vec::try_from(&self.numbers)?)
    }
}

impl Readback {
    /// Waits for the numbers at most as long as the patience: see [`HostWait::in_time`].
    pub(super) fn in_time(&self) -> Result<(), TorchError> {
        let ready = self.ready.as_ref();
        ready.map_or(Ok(()), |ready| ready.in_time(self.what))
    }
}

impl Drop for Readback {
    /// Page-locked memory must not be freed after its device is lost.
    fn drop(&mut self) {
        if self.ready.is_some() && lost::loss().is_some() {
            std::mem::forget(std::mem::replace(&mut self.numbers, Tensor::new()));
        }
    }
}

/// A single number that is read when it is used.
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
                what: "a number",
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
