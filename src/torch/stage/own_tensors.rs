//! Parameters and buffers that a layer gives out, as they are.
//!
//! Later layers may read them, at no cost. Where one changes them in place, it is given
//! copies: that is all that layers on another stage could change, and what a buffer is
//! does not depend on the cut. Which layers give out something of their stage's own is
//! found out when a segment runs for the first time.

use tch::Tensor;

use super::TorchStage;
use super::buffers::restore;
use super::writes::{Watched, changed};
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::values::Values;

/// What one run knows of it and finds out.
#[derive(Debug)]
pub(super) struct Own {
    /// The layers that are known to give out what is the stage's; none before the first run.
    known: Option<Vec<usize>>,
    pub(super) found: Vec<usize>,
    copies: bool,
    given: Watched,
    /// Tensors that were given out, and what they held, where this is a first run.
    before: Vec<(Tensor, Tensor)>,
}

impl Own {
    pub(super) fn new(known: Option<Vec<usize>>, copies: bool) -> Self {
        Self {
            known,
            found: Vec::new(),
            copies,
            given: Vec::new(),
            before: Vec::new(),
        }
    }

    /// Whether something that was given out has been changed.
    pub(super) fn changed(&self) -> Result<bool, TorchError> {
        changed(&self.given)
    }

    /// Puts it back, after a first run.
    pub(super) fn restore(&mut self) -> Result<(), TorchError> {
        // A layer that passes it on may have given out what was changed already.
        self.before.reverse();
        restore(&self.before)
    }
}

impl TorchStage {
    /// Which values are in the memory of the stage's parameters and buffers.
    pub(super) fn own_among(&self, values: &Values) -> Result<Vec<bool>, TorchError> {
        ffi::in_memory_of(values.iter(), self.own.iter())
    }

    /// A layer's outputs, and whether some are the stage's own: those are copies, or
    /// somebody looks whether they change.
    pub(super) fn give_own(
        &self,
        number: usize,
        outputs: Values,
        own: &mut Own,
    ) -> Result<(Values, bool), TorchError> {
        let gives = |known: &Vec<usize>| known.contains(&number);
        if !own.known.as_ref().is_none_or(gives) {
            return Ok((outputs, false));
        }
        let inside = self.own_among(&outputs)?;
        if !inside.contains(&true) {
            return Ok((outputs, false));
        }
        own.found.push(number);
        if own.copies {
            let copies = ffi::copies(outputs.iter(), &inside)?;
            return Ok((copies.into_iter().collect(), true));
        }
        let outputs = apart_from_owners(outputs, &inside)?;
        let given = outputs.iter().zip(inside).filter(|(_, inside)| *inside);
        for tensor in given.filter_map(|(output, _)| output) {
            if own.known.is_none() {
                let values = once(tensor.f_data()?)?;
                let copy = ffi::copy(&values)?;
                own.before.push((values, copy));
            }
            own.given
                .push((tensor.shallow_clone(), ffi::changes(tensor)?));
        }
        Ok((outputs, true))
    }
}

/// Tensors of their own in the same memory. Were a parameter without gradient given out as it
/// is, and one with a gradient written into it, autograd would take the stage's own tensor for
/// what that made, also after its values were put back.
fn apart_from_owners(outputs: Values, inside: &[bool]) -> Result<Values, TorchError> {
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
