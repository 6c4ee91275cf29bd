//! What is kept for a backward, to the host's memory and back (rule 7).

use tch::{Device, Kind, Tensor};

use super::backend::{Event, Place};
use super::device_streams::Lane;
use super::side_stream::within;
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::memory::Account;
use crate::torch::values::Values;

/// Who reads what came back, for messages.
const KEPT: &str = "what was kept on the host";

/// Memory that is being copied to the host, held until nobody reads it any more.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Since the present action, and since the one before, whose copies end there.
    now: Vec<Tensor>,
    before: Vec<Tensor>,
    copied: Option<Event>,
}

/// What was kept on the host, on its way back.
#[derive(Debug)]
pub(crate) struct Coming {
    values: Values,
    ready: Option<Event>,
}

impl Lane {
    /// Copies to the host what the main stream has made by now; `foreign` tells of each
    /// whether it is in another stream's memory. The device's next action ends before
    /// the memory is free.
    pub(crate) fn put_away(&self, tensors: Vec<(Tensor, bool)>) -> Result<Vec<Tensor>, TorchError> {
        let _elsewhere = self.elsewhere.as_ref().map(Account::enter);
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            let copies = tensors.iter().map(|(tensor, _)| on_host(tensor)).collect();
            let held = tensors.into_iter().map(|(tensor, _)| tensor);
            self.leaving.borrow_mut().now.extend(held);
            return copies;
        };
        for (tensor, foreign) in &tensors {
            if !foreign {
                layer.kept(tensor, home.device)?;
            }
        }
        let stowing = home.stowing(layer)?;
        layer.wait(stowing, &layer.record(home.main)?)?;
        within(layer, &[stowing], || {
            let copy = |(tensor, foreign): (Tensor, bool)| {
                let copy = layer.copy(&tensor, self.place(), Place::Host)?;
                if foreign {
                    layer.used_by(&tensor, stowing)?;
                }
                self.leaving.borrow_mut().now.push(tensor);
                Ok(copy)
            };
            tensors.into_iter().map(copy).collect()
        })
    }

    /// An action of the device is over: what left in the one before is let go of.
    pub(crate) fn acted(&self) -> Result<(), TorchError> {
        let mut leaving = self.leaving.borrow_mut();
        let Leaving {
            now,
            before,
            copied,
        } = &mut *leaving;
        if let (Some(layer), Some(home)) = (&self.layer, &self.home) {
            if let Some(copied) = copied.take() {
                layer.wait(home.main, &copied)?;
            }
            if !now.is_empty() {
                *copied = Some(layer.record(home.stowing(layer)?)?);
            }
        }
        *before = std::mem::take(now);
        Ok(())
    }

    /// A task is over, in whatever way: everything that left is let go of.
    pub(crate) fn stowed(&self) -> Result<(), TorchError> {
        self.acted()?;
        self.acted()
    }

    /// The host waits until what was put away is there, to read it itself.
    pub(crate) fn put_away_by_now(&self) -> Result<(), TorchError> {
        match (&self.layer, &self.home) {
            (Some(layer), Some(home)) => layer.finish(&layer.record(home.stowing(layer)?)?),
            _ => Ok(()),
        }
    }

    /// Begins to bring back from the host what is going to be used by a later action.
    pub(crate) fn bring_back(&self, values: Values) -> Result<Coming, TorchError> {
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            let values = values.try_move(|tensor| on_host(&tensor))?;
            let ready = None;
            return Ok(Coming { values, ready });
        };
        let returning = home.returning(layer)?;
        // It may be leaving still.
        layer.wait(returning, &layer.record(home.stowing(layer)?)?)?;
        layer.wait(returning, &layer.record(home.main)?)?;
        let values = within(layer, &[returning], || {
            values.try_move(|tensor| layer.copy(&tensor, Place::Host, self.place()))
        })?;
        let ready = Some(layer.record(returning)?);
        Ok(Coming { values, ready })
    }

    /// What came back, for what comes into the main stream from now on.
    pub(crate) fn back(&self, coming: Coming) -> Result<Values, TorchError> {
        let Coming { values, ready } = coming;
        if let (Some(layer), Some(home)) = (&self.layer, &self.home) {
            if let Some(ready) = ready {
                layer.wait(home.main, &ready)?;
            }
            layer.reads(KEPT, self.place(), values.present());
        }
        Ok(values)
    }
}

impl Lane {
    /// So many bytes of the device's memory, which copies are going to write into.
    pub(crate) fn reserve(&self, bytes: u64, device: Device) -> Result<Tensor, TorchError> {
        let memory = Tensor::f_empty([bytes as i64], (Kind::Uint8, device))?;
        if let (Some(layer), Some(home)) = (&self.layer, &self.home) {
            layer.kept(&memory, home.device)?;
        }
        Ok(memory)
    }

    /// Begins to copy from the host into memory of the main stream: of each pair, the first
    /// into the second.
    pub(crate) fn bring_into<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a Tensor, &'a Tensor)>,
    ) -> Result<Option<Event>, TorchError> {
        let mut pairs = pairs.peekable();
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            pairs.try_for_each(|(host, here)| ffi::copy_into(here, host))?;
            return Ok(None);
        };
        if pairs.peek().is_none() {
            return Ok(None);
        }
        let returning = home.returning(layer)?;
        // It may be leaving still, and what was in the memory before, too.
        layer.wait(returning, &layer.record(home.stowing(layer)?)?)?;
        layer.wait(returning, &layer.record(home.main)?)?;
        within(layer, &[returning], || {
            pairs.try_for_each(|(host, here)| {
                layer.copy_into(here, host, (Place::Host, self.place()))
            })
        })?;
        layer.record(returning).map(Some)
    }

    /// What [`Lane::bring_into`] has begun is over, for what comes into the main stream from
    /// now on.
    pub(crate) fn are_there<'a>(
        &self,
        ready: Option<Event>,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) -> Result<(), TorchError> {
        if let (Some(layer), Some(home), Some(ready)) = (&self.layer, &self.home, ready) {
            layer.wait(home.main, &ready)?;
            layer.reads(KEPT, self.place(), tensors);
        }
        Ok(())
    }

    /// Copies what the main stream has made by now into the host's memory: of each pair,
    /// the first into the second.
    pub(crate) fn send_into(
        &self,
        pairs: impl Iterator<Item = (Tensor, Tensor)>,
    ) -> Result<(), TorchError> {
        let mut pairs = pairs.peekable();
        let (Some(layer), Some(home)) = (&self.layer, &self.home) else {
            return pairs.try_for_each(|(here, host)| ffi::copy_into(&host, &here));
        };
        if pairs.peek().is_none() {
            return Ok(());
        }
        let stowing = home.stowing(layer)?;
        layer.wait(stowing, &layer.record(home.main)?)?;
        within(layer, &[stowing], || {
            pairs.try_for_each(|(here, host)| {
                layer.copy_into(&host, &here, (self.place(), Place::Host))?;
                self.leaving.borrow_mut().now.push(here);
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
