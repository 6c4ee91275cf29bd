//! Values in transit between stages (p2p).

use tch::Device;

use super::backend::Backend;
use super::ids::{Event, MemorySpace};
use super::to_host::ToHost;
use crate::error::TorchError;
use crate::values::Values;

/// Values that have been sent, and the event that says when they have arrived.
#[doc(alias = "p2p")]
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    pub(crate) values: Values,
    /// Their memory space; none in a pipeline without accelerators.
    pub(super) at: Option<MemorySpace>,
    /// The event that a user of the values has to wait for.
    pub(super) ready: Option<Event>,
}

impl From<Values> for InTransit {
    fn from(values: Values) -> Self {
        Self {
            values,
            at: None,
            ready: None,
        }
    }
}

impl InTransit {
    pub(super) fn new(values: Values, at: MemorySpace, ready: Option<Event>) -> Self {
        Self {
            values,
            at: Some(at),
            ready,
        }
    }

    /// Wraps values in host memory, for a stage anywhere: the receiver copies them to its own
    /// device.
    pub(crate) fn on_host(values: Values) -> Self {
        Self::new(values, MemorySpace::Host, None)
    }

    /// Returns the accelerator that has some of the values; `None` for a recorder's, which are on
    /// the host.
    pub(crate) fn on_accelerator(&self) -> Option<usize> {
        let mut present = self.values.present();
        present.find_map(|tensor| match MemorySpace::of(tensor.device()) {
            MemorySpace::Accelerator(device) => Some(device),
            MemorySpace::Host => None,
        })
    }

    /// Values that the calling thread's current stream makes.
    pub(crate) fn of_current_stream(backend: &Backend, values: Values) -> Result<Self, TorchError> {
        let there = values
            .present()
            .map(|tensor| MemorySpace::of(tensor.device()));
        let Some(at @ MemorySpace::Accelerator(device)) = there.max() else {
            return Ok(Self::on_host(values));
        };
        let _shared = backend.submit_guard(device);
        let ready = backend.record(backend.current(device)?)?;
        Ok(Self::new(values, at, Some(ready)))
    }

    /// The values on a device, for the calling thread's current stream there (rules 3 and 4).
    pub(crate) fn open(self, backend: &Backend, device: Device) -> Result<Values, TorchError> {
        let Device::Cuda(index) = device else {
            return ToHost::default().values(self);
        };
        let Self { values, ready, .. } = self;
        let _shared = backend.submit_guard(index);
        let stream = backend.current(index)?;
        if let Some(ready) = &ready {
            backend.wait(stream, ready)?;
        }
        let here = MemorySpace::Accelerator(index);
        values.try_move(|tensor| match MemorySpace::of(tensor.device()) {
            MemorySpace::Host => backend.copy(&tensor, MemorySpace::Host, here),
            from @ MemorySpace::Accelerator(_) if from == here => {
                backend.used_by(&tensor, stream).map(|()| tensor)
            }
            from @ MemorySpace::Accelerator(other) => {
                let _shared = backend.submit_guard(other);
                // libtorch has it wait for both devices' current streams.
                let copy = backend.copy(&tensor, from, here)?;
                backend.used_by(&tensor, backend.current(other)?)?;
                Ok(copy)
            }
        })
    }

    /// Lets the caller use the values in its current stream (rule 4).
    pub(crate) fn hand_out(&self, backend: &Backend) -> Result<(), TorchError> {
        let Some(at @ MemorySpace::Accelerator(_)) = self.at else {
            return Ok(());
        };
        for tensor in self.values.present() {
            if let MemorySpace::Accelerator(device) = backend.space_of(tensor, at) {
                backend.used_by(tensor, backend.current(device)?)?;
            }
        }
        backend.reads("the caller", at, self.values.present());
        Ok(())
    }
}
