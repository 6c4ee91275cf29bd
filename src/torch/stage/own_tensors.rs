//! Parameters and buffers that a layer outputs unchanged.
//!
//! Later layers may read them, at no cost. A layer that changes them in place gets copies, as
//! layers on another stage could not change the originals either, and the buffers must not depend
//! on the cut. The layers that output tensors of their stage are found when a segment runs for the
//! first time.

use tch::Tensor;

use super::buffers::restore;
use super::writes::Watched;
use crate::error::TorchError;
use crate::ffi;
use crate::values::Values;

/// A stage's parameters and buffers.
#[derive(Debug)]
pub(super) struct OwnTensors(Vec<Tensor>);

/// Address of one of them, and whether it is trained.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    memory: usize,
    trained: bool,
}

impl OwnTensors {
    pub(super) fn new(tensors: Vec<Tensor>) -> Self {
        Self(tensors)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter()
    }

    /// Returns their addresses, and which are trained.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let address = |tensor: &Tensor| Address {
            memory: tensor.data_ptr() as usize,
            trained: tensor.requires_grad(),
        };
        self.iter().map(address).collect()
    }

    /// Returns which values lie in their memory.
    pub(super) fn among(&self, values: &Values) -> Result<Vec<bool>, TorchError> {
        ffi::in_memory_of(values.iter(), self.iter())
    }
}

/// A segment run's knowledge about layers that output them.
#[derive(Debug)]
pub(super) struct GivenOut<'a> {
    /// The layers known to do so; `None` before the first run.
    known: Option<&'a [usize]>,
    found: Vec<usize>,
    /// Whether copies are output.
    copies: bool,
    watched: Watched,
    /// Tensors that were output, and their values, in a first run.
    before: Vec<(Tensor, Tensor)>,
}

impl<'a> GivenOut<'a> {
    pub(super) fn new(known: Option<&'a [usize]>, copies: bool) -> Self {
        Self {
            known,
            found: Vec::new(),
            copies,
            watched: Watched::default(),
            before: Vec::new(),
        }
    }

    /// Returns whether this layer may output a tensor of the stage.
    pub(super) fn may(&self, layer: usize) -> bool {
        self.known.is_none_or(|known| known.contains(&layer))
    }

    /// A layer's outputs, and whether some are the stage's own: those are copies, or
    /// it is watched whether they change.
    pub(super) fn outputs(
        &mut self,
        own: &OwnTensors,
        layer: usize,
        outputs: Values,
    ) -> Result<(Values, bool), TorchError> {
        let inside = own.among(&outputs)?;
        if !inside.contains(&true) {
            return Ok((outputs, false));
        }
        self.found.push(layer);
        if self.copies {
            let copies = ffi::copies(outputs.iter(), &inside)?;
            return Ok((copies.into_iter().collect(), true));
        }
        let outputs = detached(outputs, &inside)?;
        let given = outputs.iter().zip(inside).filter(|(_, inside)| *inside);
        for tensor in given.filter_map(|(output, _)| output) {
            if self.known.is_none() {
                let values = once(tensor.f_data()?)?;
                let copy = ffi::copy(&values)?;
                self.before.push((values, copy));
            }
            self.watched.add(tensor, ffi::changes(tensor)?);
        }
        Ok((outputs, true))
    }

    /// Returns whether an output tensor has been changed.
    pub(super) fn changed(&self) -> Result<bool, TorchError> {
        self.watched.changed()
    }

    /// Puts it back, after a first run.
    pub(super) fn restore(&mut self) -> Result<(), TorchError> {
        // A layer that passes it on may have given out what was changed already.
        self.before.reverse();
        restore(&self.before)
    }

    /// The layers that gave out something.
    pub(super) fn into_found(self) -> Vec<usize> {
        self.found
    }
}

/// Tensors of their own in the same memory. Were a parameter without gradient given out as it
/// is, and one with a gradient written into it, autograd would take the stage's own tensor for
/// what that made, also after its values were put back.
fn detached(outputs: Values, inside: &[bool]) -> Result<Values, TorchError> {
    if ffi::aliases(outputs.iter())?.is_some() {
        return Ok(outputs);
    }
    let mut inside = inside.iter();
    let outputs = outputs.into_iter().map(|output| match inside.next() {
        Some(true) => output.map(without_history).transpose(),
        _ => Ok(output),
    });
    outputs.collect()
}

fn without_history(tensor: Tensor) -> Result<Tensor, TorchError> {
    if tensor.requires_grad() {
        return Ok(tensor);
    }
    Ok(tensor.f_detach()?)
}

/// Every place of a tensor's memory once: an expanded one cannot be written to as a whole.
fn once(tensor: Tensor) -> Result<Tensor, TorchError> {
    let extents = tensor.size().into_iter().zip(tensor.stride());
    let expanded = (0..)
        .zip(extents)
        .filter(|(_, (size, stride))| *stride == 0 && *size > 1);
    let dims: Vec<i64> = expanded.map(|(dim, _)| dim).collect();
    dims.into_iter()
        .try_fold(tensor, |tensor, dim| Ok(tensor.f_narrow(dim, 0, 1)?))
}
