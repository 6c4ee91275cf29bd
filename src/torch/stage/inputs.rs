//! Inputs of a segment.

use tch::Tensor;

use super::border::SkipList;
use super::buffers::BufferValues;
use crate::error::TorchError;
use crate::ffi;
use crate::values::Values;

/// Inputs of a segment, which it keeps if it recomputes.
#[derive(Debug)]
pub(super) struct Inputs {
    main: Values,
    skips: SkipList,
    /// Values that its layers found in moving buffers, if they will run once more.
    buffers: BufferValues,
}

impl Inputs {
    pub(super) fn new(main: Values, skips: SkipList) -> Self {
        let buffers = BufferValues::new();
        Self {
            main,
            skips,
            buffers,
        }
    }

    /// For another run, which is to find this in the buffers.
    pub(super) fn set_buffers(&mut self, buffers: BufferValues) {
        self.buffers = buffers;
    }

    pub(super) fn buffers(&self) -> &BufferValues {
        &self.buffers
    }

    pub(super) fn main(&self) -> &Values {
        &self.main
    }

    pub(super) fn skips(&self) -> &[(usize, Option<Tensor>)] {
        &self.skips
    }

    pub(super) fn into_values(self) -> (Values, SkipList) {
        (self.main, self.skips)
    }

    /// Splits into main values, skips and buffer values.
    pub(super) fn into_parts(self) -> (Values, SkipList, BufferValues) {
        (self.main, self.skips, self.buffers)
    }

    /// The main values, then those of skips.
    pub(super) fn all(&self) -> impl Iterator<Item = Option<&Tensor>> {
        let skips = self.skips.iter().map(|(_, value)| value.as_ref());
        self.main.iter().chain(skips)
    }

    /// The existing features.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let skips = self.skips.iter().filter_map(|(_, value)| value.as_ref());
        self.main.present().chain(skips)
    }

    /// Returns the layers' inputs: these tensors, or copies of them. Copies of main values that
    /// share memory share it too, unless they are `separate`.
    pub(super) fn seen(&self, copies: bool, separate: bool) -> Result<Self, TorchError> {
        let seen = |tensor: Tensor| -> Result<Tensor, TorchError> {
            if !copies {
                return Ok(tensor);
            }
            let copy = tch::no_grad(|| ffi::copy(&tensor))?;
            Ok(copy.f_set_requires_grad(tensor.requires_grad())?)
        };
        let main = self.main.shallow_clone();
        let skips = self.skips.iter().map(|(skip, value)| {
            let value = value.as_ref().map(Tensor::shallow_clone);
            Ok((*skip, value.map(seen).transpose()?))
        });
        let skips = skips.collect::<Result<_, TorchError>>()?;
        let main = if copies && !separate {
            main.try_move(seen)?
        } else {
            main.try_map(seen)?
        };
        Ok(Self::new(main, skips))
    }
}
