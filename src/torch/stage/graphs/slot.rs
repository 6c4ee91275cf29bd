//! The tensors and graphs of one micro-batch at a time.

use tch::{Device, Kind, Tensor};

use super::Graphs;
use super::copies::{fill, fresh_or_none};
use crate::torch::error::TorchError;
use crate::torch::stage::activations::{Half, Inputs, Live};
use crate::torch::streams::{CapturedGraph, GraphPool};
use crate::torch::values::Values;

/// What graphs are captured for: everything about a list of values but the numbers.
pub(super) type Shape = Vec<Option<Form>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    kind: Kind,
    device: Device,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    requires_grad: bool,
}

/// None where a value has no strides.
pub(super) fn shape<'a>(values: impl Iterator<Item = Option<&'a Tensor>>) -> Option<Shape> {
    let form = |value: Option<&Tensor>| {
        let Some(tensor) = value else {
            return Some(None);
        };
        if tensor.is_sparse() || tensor.is_mkldnn() {
            return None;
        }
        Some(Some(Form {
            kind: tensor.kind(),
            device: tensor.device(),
            sizes: tensor.size(),
            strides: tensor.stride(),
            requires_grad: tensor.requires_grad(),
        }))
    };
    values.map(form).collect()
}

/// Numbers from one list of values to another of the same shape.
pub(super) fn fill_all<'a>(
    to: impl Iterator<Item = Option<&'a Tensor>>,
    from: impl Iterator<Item = Option<&'a Tensor>>,
) -> Result<(), TorchError> {
    for pair in to.zip(from) {
        match pair {
            (Some(to), Some(from)) => fill(to, from)?,
            (None, None) => {}
            _ => {
                return Err(TorchError::new(
                    "a value is there that was not when a graph was captured, or the other way round",
                ));
            }
        }
    }
    Ok(())
}

/// Values of skips, or their gradients, by the skips' numbers.
pub(super) type Skips = Vec<(usize, Option<Tensor>)>;

/// One micro-batch's place in a stage's graphs.
#[derive(Debug)]
pub(in crate::torch::stage) struct Slot {
    pub(super) shape: Shape,
    /// How its micro-batches come back.
    pub(super) half: Half,
    pub(super) pool: GraphPool,
    pub(super) inputs: Inputs,
    pub(super) forward: CapturedGraph,
    pub(super) outputs: Values,
    /// Those that leave, by their numbers.
    pub(super) skips: Skips,
    /// What the capture of the backward goes back through.
    pub(super) live: Option<Live>,
    pub(super) back: Option<Back>,
    pub(super) weight: Option<Weight>,
}

/// The backward, or its first half.
#[derive(Debug)]
pub(super) struct Back {
    pub(super) graph: CapturedGraph,
    /// What it is given: gradients of skips that leave, then of the outputs.
    pub(super) seeds: Vec<Option<Tensor>>,
    pub(super) shape: Shape,
    /// Gradients of the inputs, and of skips that arrive.
    pub(super) main: Vec<Option<Tensor>>,
    pub(super) skips: Skips,
    /// Those of parameters, where it is the whole backward.
    pub(super) gradients: Vec<Option<Tensor>>,
}

/// The second half of the backward.
#[derive(Debug)]
pub(super) struct Weight {
    pub(super) graph: CapturedGraph,
    pub(super) gradients: Vec<Option<Tensor>>,
}

/// One of a slot's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Forward,
    Back,
    Weight,
}

impl Slot {
    /// Whether all that a micro-batch needs has been captured.
    pub(super) fn is_whole(&self) -> bool {
        self.back.is_some() && (self.half == Half::Joint || self.weight.is_some())
    }

    pub(super) fn graph(&self, part: Part) -> Option<&CapturedGraph> {
        match part {
            Part::Forward => Some(&self.forward),
            Part::Back => self.back.as_ref().map(|back| &back.graph),
            Part::Weight => self.weight.as_ref().map(|weight| &weight.graph),
        }
    }

    /// What leaves with the forward, to be kept by others.
    pub(super) fn sent(&self) -> Result<(Values, Skips), TorchError> {
        let outputs = self.outputs.iter().map(fresh_or_none);
        Ok((outputs.collect::<Result<_, _>>()?, copies(&self.skips)?))
    }
}

impl Back {
    /// What leaves with the backward, to be kept by others.
    pub(super) fn sent(&self) -> Result<Sent, TorchError> {
        let main = self.main.iter().map(|grad| fresh_or_none(grad.as_ref()));
        Ok((main.collect::<Result<_, _>>()?, copies(&self.skips)?))
    }
}

/// Gradients of the inputs, and of skips by their numbers.
pub(super) type Sent = (Vec<Option<Tensor>>, Skips);

/// Copies of skips' values, to be kept by others.
pub(super) fn copies(skips: &[(usize, Option<Tensor>)]) -> Result<Skips, TorchError> {
    let copy =
        |(skip, value): &(usize, Option<Tensor>)| Ok((*skip, fresh_or_none(value.as_ref())?));
    skips.iter().map(copy).collect()
}

impl Graphs {
    /// Notes that graphs have been captured over parameters and buffers at these places.
    pub(super) fn note_capture(&mut self, places: Vec<(usize, bool)>) {
        self.captured.set(self.captured.get() + 1);
        self.places = places;
    }

    pub(super) fn note_replay(&self) {
        self.replayed.set(self.replayed.get() + 1);
    }
}
