//! What is kept for a backward, to the host's memory and back (rule 7).

use tch::{Device, Kind, Tensor};

use super::backend::{Event, MemorySpace};
use super::device_streams::DeviceStreams;
use super::side_stream::within;
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::memory::Account;
use crate::torch::values::Values;

/// Who reads what came back, for messages.
const KEPT: &str = "what was kept on the host";

/// Memory that is being copied to the host, held until nobody reads it any more.
#[derive(Debug, Default)]
pub(crate) struct PendingD2H {
    /// Since the present action, and since the one before, whose copies end there.
    now: Vec<Tensor>,
    before: Vec<Tensor>,
    copied: Option<Event>,
}

/// What was kept on the host, on its way back.
#[derive(Debug)]
pub(crate) struct PendingH2D {
    values: Values,
    ready: Option<Event>,
}

impl DeviceStreams {
    /// Copies to the host what the main stream has made by now; `foreign` tells of each
    /// whether it is in another stream's memory. The device's next action ends before
    /// the memory is free.
    pub(crate) fn offload(&self, tensors: Vec<(Tensor, bool)>) -> Result<Vec<Tensor>, TorchError> {
        let _charged = self.host_account.as_ref().map(Account::enter);
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            let copies = tensors.iter().map(|(tensor, _)| on_host(tensor)).collect();
            let held = tensors.into_iter().map(|(tensor, _)| tensor);
            self.pending_d2h.borrow_mut().now.extend(held);
            return copies;
        };
        for (tensor, foreign) in &tensors {
            if !foreign {
                backend.kept(tensor, accelerator.device)?;
            }
        }
        let offloading = accelerator.offloading(backend)?;
        backend.wait(offloading, &backend.record(accelerator.main)?)?;
        within(backend, &[offloading], || {
            let copy = |(tensor, foreign): (Tensor, bool)| {
                let copy = backend.copy(&tensor, self.space(), MemorySpace::Host)?;
                if foreign {
                    backend.used_by(&tensor, offloading)?;
                }
                self.pending_d2h.borrow_mut().now.push(tensor);
                Ok(copy)
            };
            tensors.into_iter().map(copy).collect()
        })
    }

    /// An action of the device is over: what left in the one before is let go of.
    pub(crate) fn end_action(&self) -> Result<(), TorchError> {
        let mut pending = self.pending_d2h.borrow_mut();
        let PendingD2H {
            now,
            before,
            copied,
        } = &mut *pending;
        if let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) {
            if let Some(copied) = copied.take() {
                backend.wait(accelerator.main, &copied)?;
            }
            if !now.is_empty() {
                *copied = Some(backend.record(accelerator.offloading(backend)?)?);
            }
        }
        *before = std::mem::take(now);
        Ok(())
    }

    /// A task is over, in whatever way: everything that left is let go of.
    pub(crate) fn release_offloaded(&self) -> Result<(), TorchError> {
        self.end_action()?;
        self.end_action()
    }

    /// The host waits until what was put away is there, to read it itself.
    pub(crate) fn wait_offloaded(&self) -> Result<(), TorchError> {
        match (&self.backend, &self.accelerator) {
            (Some(backend), Some(accelerator)) => {
                backend.finish(&backend.record(accelerator.offloading(backend)?)?)
            }
            _ => Ok(()),
        }
    }

    /// Begins to bring back from the host what is going to be used by a later action.
    pub(crate) fn prefetch(&self, values: Values) -> Result<PendingH2D, TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            let values = values.try_move(|tensor| on_host(&tensor))?;
            let ready = None;
            return Ok(PendingH2D { values, ready });
        };
        let prefetching = accelerator.prefetching(backend)?;
        // It may be pending still.
        backend.wait(
            prefetching,
            &backend.record(accelerator.offloading(backend)?)?,
        )?;
        backend.wait(prefetching, &backend.record(accelerator.main)?)?;
        let values = within(backend, &[prefetching], || {
            values.try_move(|tensor| backend.copy(&tensor, MemorySpace::Host, self.space()))
        })?;
        let ready = Some(backend.record(prefetching)?);
        Ok(PendingH2D { values, ready })
    }

    /// What came back, for what comes into the main stream from now on.
    pub(crate) fn wait_prefetch(&self, pending: PendingH2D) -> Result<Values, TorchError> {
        let PendingH2D { values, ready } = pending;
        if let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) {
            if let Some(ready) = ready {
                backend.wait(accelerator.main, &ready)?;
            }
            backend.reads(KEPT, self.space(), values.present());
        }
        Ok(values)
    }
}

impl DeviceStreams {
    /// So many bytes of the device's memory, which copies are going to write into.
    pub(crate) fn reserve(&self, bytes: u64, device: Device) -> Result<Tensor, TorchError> {
        let memory = Tensor::f_empty([bytes as i64], (Kind::Uint8, device))?;
        if let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) {
            backend.kept(&memory, accelerator.device)?;
        }
        Ok(memory)
    }

    /// Begins to copy from the host into memory of the main stream: of each pair, the first
    /// into the second.
    pub(crate) fn prefetch_into<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a Tensor, &'a Tensor)>,
    ) -> Result<Option<Event>, TorchError> {
        let mut pairs = pairs.peekable();
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            pairs.try_for_each(|(host, here)| ffi::copy_into(here, host))?;
            return Ok(None);
        };
        if pairs.peek().is_none() {
            return Ok(None);
        }
        let prefetching = accelerator.prefetching(backend)?;
        // It may be pending still, and what was in the memory before, too.
        backend.wait(
            prefetching,
            &backend.record(accelerator.offloading(backend)?)?,
        )?;
        backend.wait(prefetching, &backend.record(accelerator.main)?)?;
        within(backend, &[prefetching], || {
            pairs.try_for_each(|(host, here)| {
                backend.copy_into(here, host, (MemorySpace::Host, self.space()))
            })
        })?;
        backend.record(prefetching).map(Some)
    }

    /// What [`DeviceStreams::prefetch_into`] has begun is over, for what comes into the main stream from
    /// now on.
    pub(crate) fn wait_prefetch_into<'a>(
        &self,
        ready: Option<Event>,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) -> Result<(), TorchError> {
        if let (Some(backend), Some(accelerator), Some(ready)) =
            (&self.backend, &self.accelerator, ready)
        {
            backend.wait(accelerator.main, &ready)?;
            backend.reads(KEPT, self.space(), tensors);
        }
        Ok(())
    }

    /// Copies what the main stream has made by now into the host's memory: of each pair,
    /// the first into the second.
    pub(crate) fn offload_into(
        &self,
        pairs: impl Iterator<Item = (Tensor, Tensor)>,
    ) -> Result<(), TorchError> {
        let mut pairs = pairs.peekable();
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return pairs.try_for_each(|(here, host)| ffi::copy_into(&host, &here));
        };
        if pairs.peek().is_none() {
            return Ok(());
        }
        let offloading = accelerator.offloading(backend)?;
        backend.wait(offloading, &backend.record(accelerator.main)?)?;
        within(backend, &[offloading], || {
            pairs.try_for_each(|(here, host)| {
                backend.copy_into(&host, &here, (self.space(), MemorySpace::Host))?;
                self.pending_d2h.borrow_mut().now.push(here);
                Ok(())
            })
        })
    }
}

/// A copy in the host's memory of what is there already.
fn on_host(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let copy = ffi::copy(&tensor.f_detach()?)?;
    Ok(copy.f_set_requires_grad(tensor.requires_grad())?)
}
