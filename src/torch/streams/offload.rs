//! Activation offload: activations are copied to host memory and prefetched before their use (rule
//! 7). Optimizer states are offloaded by the same means.

use tch::{Device, Kind, Tensor};

use super::device_streams::DeviceStreams;
use super::ids::{Event, MemorySpace};
use super::left_out::left_out;
use super::pending::{PendingD2H, PendingH2D};
use super::side_stream::within;
use crate::error::TorchError;
use crate::ffi;
use crate::memory::Account;
use crate::values::Values;

/// The reader of prefetched values, for messages.
const KEPT: &str = "what was kept on the host";

impl DeviceStreams {
    /// Copies tensors that the main stream has made by now to the host (D2H), and returns the
    /// copies. `foreign` tells for each tensor whether its memory belongs to another stream. The
    /// memory is held until the end of the device's next action.
    #[doc(alias = "save_on_cpu")]
    #[doc(alias = "to_host")]
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
                if !left_out("hold") {
                    self.pending_d2h.borrow_mut().now.push(tensor);
                }
                Ok(copy)
            };
            tensors.into_iter().map(copy).collect()
        })
    }

    /// Ends an action of the device: what was offloaded in the action before is freed.
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
        if left_out("hold") {
            now.clear();
        }
        *before = std::mem::take(now);
        Ok(())
    }

    /// Frees everything that was offloaded, at the end of a task, failed or not.
    pub(crate) fn release_offloaded(&self) -> Result<(), TorchError> {
        self.end_action()?;
        self.end_action()
    }

    /// Blocks the host until everything offloaded has arrived, so that the host can read it.
    pub(crate) fn wait_offloaded(&self) -> Result<(), TorchError> {
        match (&self.backend, &self.accelerator) {
            (Some(backend), Some(accelerator)) => {
                backend.finish(&backend.record(accelerator.offloading(backend)?)?)
            }
            _ => Ok(()),
        }
    }

    /// Begins to copy from the host (H2D) what a later action is going to use.
    pub(crate) fn prefetch(&self, values: Values) -> Result<PendingH2D, TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            let values = values.try_move(|tensor| on_host(&tensor))?;
            let ready = None;
            return Ok(PendingH2D { values, ready });
        };
        let prefetching = accelerator.prefetching(backend)?;
        // The copy to the host may not be over yet.
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

    /// Makes prefetched values usable in the main stream, which waits for their copies.
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
    /// Allocates device memory that [`DeviceStreams::prefetch_into`] is going to write into.
    pub(crate) fn reserve(&self, bytes: u64, device: Device) -> Result<Tensor, TorchError> {
        let memory = Tensor::f_empty([bytes as i64], (Kind::Uint8, device))?;
        if let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) {
            backend.kept(&memory, accelerator.device)?;
        }
        Ok(memory)
    }

    /// Begins to copy from the host into memory of the main stream: the first of each pair
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
        // Its copy to the host, or that of the memory's previous content, may not be over yet.
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

    /// Makes the main stream wait for the copies begun by [`DeviceStreams::prefetch_into`].
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

    /// Makes the main stream wait for all prefetches, some of which may have failed: then the
    /// memory can be freed.
    pub(crate) fn join_prefetches(&self) -> Result<(), TorchError> {
        let (Some(backend), Some(accelerator)) = (&self.backend, &self.accelerator) else {
            return Ok(());
        };
        let prefetching = accelerator.prefetching(backend)?;
        backend.wait(accelerator.main, &backend.record(prefetching)?)
    }

    /// Copies tensors that the main stream has made by now into existing host memory: the first of
    /// each pair into the second.
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
                if !left_out("hold") {
                    self.pending_d2h.borrow_mut().now.push(here);
                }
                Ok(())
            })
        })
    }
}

/// A copy on the host of a tensor that is on the host.
fn on_host(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let copy = ffi::copy(&tensor.f_detach()?)?;
    Ok(copy.f_set_requires_grad(tensor.requires_grad())?)
}
