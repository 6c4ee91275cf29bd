//! Activation offload: activations are copied to host memory and prefetched before their use (rule
//! 7). Optimizer states are offloaded by the same means.

use tch::Tensor;

use super::cuda;
use super::device_streams::DeviceStreams;
use super::ids::{Event, MemorySpace};
use super::left_out::left_out;
use super::pending::{PendingD2H, PendingH2D};
use super::side_stream::within;
use crate::error::TorchError;
use crate::ffi;
use crate::memory::Account;
use crate::values::Values;

impl DeviceStreams {
    /// Copies tensors that the main stream has made by now to the host (D2H), and returns the
    /// copies. `foreign` tells for each tensor whether its memory belongs to another stream. The
    /// memory is held until the end of the device's next action.
    #[doc(alias = "save_on_cpu")]
    #[doc(alias = "to_host")]
    pub(crate) fn offload(&self, tensors: Vec<(Tensor, bool)>) -> Result<Vec<Tensor>, TorchError> {
        let _charged = self.host_account.as_ref().map(Account::enter);
        let Some(accelerator) = &self.accelerator else {
            let copies = tensors.iter().map(|(tensor, _)| on_host(tensor)).collect();
            let held = tensors.into_iter().map(|(tensor, _)| tensor);
            self.pending_d2h.borrow_mut().now.extend(held);
            return copies;
        };
        let offloading = accelerator.offloading()?;
        cuda::wait(offloading, &cuda::record(accelerator.main)?)?;
        within(&[offloading], || {
            let copy = |(tensor, foreign): (Tensor, bool)| {
                let copy = cuda::copy(&tensor, MemorySpace::Host)?;
                if foreign {
                    cuda::used_by(&tensor, offloading)?;
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
        if let Some(accelerator) = &self.accelerator {
            if let Some(copied) = copied.take() {
                cuda::wait(accelerator.main, &copied)?;
            }
            if !now.is_empty() {
                *copied = Some(cuda::record(accelerator.offloading()?)?);
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
        match &self.accelerator {
            Some(accelerator) => cuda::finish(&cuda::record(accelerator.offloading()?)?),
            None => Ok(()),
        }
    }

    /// Begins to copy from the host (H2D) what a later action is going to use.
    pub(crate) fn prefetch(&self, values: Values) -> Result<PendingH2D, TorchError> {
        let Some(accelerator) = &self.accelerator else {
            let values = values.try_move(|tensor| on_host(&tensor))?;
            let ready = None;
            return Ok(PendingH2D { values, ready });
        };
        let prefetching = accelerator.prefetching()?;
        // The copy to the host may not be over yet.
        cuda::wait(prefetching, &cuda::record(accelerator.offloading()?)?)?;
        cuda::wait(prefetching, &cuda::record(accelerator.main)?)?;
        let values = within(&[prefetching], || {
            values.try_move(|tensor| cuda::copy(&tensor, self.space()))
        })?;
        let ready = Some(cuda::record(prefetching)?);
        Ok(PendingH2D { values, ready })
    }

    /// Makes prefetched values usable in the main stream, which waits for their copies.
    pub(crate) fn wait_prefetch(&self, pending: PendingH2D) -> Result<Values, TorchError> {
        let PendingH2D { values, ready } = pending;
        if let (Some(accelerator), Some(ready)) = (&self.accelerator, ready) {
            cuda::wait(accelerator.main, &ready)?;
        }
        Ok(values)
    }
}

impl DeviceStreams {
    /// Begins to copy from the host into memory of the main stream: the first of each pair
    /// into the second.
    pub(crate) fn prefetch_into<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a Tensor, &'a Tensor)>,
    ) -> Result<Option<Event>, TorchError> {
        let mut pairs = pairs.peekable();
        let Some(accelerator) = &self.accelerator else {
            pairs.try_for_each(|(host, here)| ffi::copy_into(here, host))?;
            return Ok(None);
        };
        if pairs.peek().is_none() {
            return Ok(None);
        }
        let prefetching = accelerator.prefetching()?;
        // Its copy to the host, or that of the memory's previous content, may not be over yet.
        cuda::wait(prefetching, &cuda::record(accelerator.offloading()?)?)?;
        cuda::wait(prefetching, &cuda::record(accelerator.main)?)?;
        within(&[prefetching], || {
            pairs.try_for_each(|(host, here)| cuda::copy_into(here, host))
        })?;
        cuda::record(prefetching).map(Some)
    }

    /// Makes the main stream wait for the copies begun by [`DeviceStreams::prefetch_into`].
    pub(crate) fn wait_prefetch_into(&self, ready: Option<Event>) -> Result<(), TorchError> {
        if let (Some(accelerator), Some(ready)) = (&self.accelerator, ready) {
            cuda::wait(accelerator.main, &ready)?;
        }
        Ok(())
    }

    /// Makes the main stream wait for all prefetches, some of which may have failed: then the
    /// memory can be freed.
    pub(crate) fn join_prefetches(&self) -> Result<(), TorchError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(());
        };
        let prefetching = accelerator.prefetching()?;
        cuda::wait(accelerator.main, &cuda::record(prefetching)?)
    }

    /// Copies tensors that the main stream has made by now into existing host memory: the first of
    /// each pair into the second.
    pub(crate) fn offload_into(
        &self,
        pairs: impl Iterator<Item = (Tensor, Tensor)>,
    ) -> Result<(), TorchError> {
        let mut pairs = pairs.peekable();
        let Some(accelerator) = &self.accelerator else {
            return pairs.try_for_each(|(here, host)| ffi::copy_into(&host, &here));
        };
        if pairs.peek().is_none() {
            return Ok(());
        }
        let offloading = accelerator.offloading()?;
        cuda::wait(offloading, &cuda::record(accelerator.main)?)?;
        within(&[offloading], || {
            pairs.try_for_each(|(here, host)| {
                cuda::copy_into(&host, &here)?;
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
