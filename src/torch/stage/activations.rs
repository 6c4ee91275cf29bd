//! What a micro-batch leaves on a stage between its forward and its backward.

use std::collections::HashMap;

use tch::Tensor;

use super::buffers::Before;
use super::graphs::Slot;
use super::offload::{Saved, Stowed};
use crate::torch::error::TorchError;
use crate::torch::ffi::{self, Graph, Sink};
use crate::torch::streams::PendingH2D;
use crate::torch::values::Values;

/// Values (or gradients) of skips on their way, by the skips' numbers.
pub(super) type Transit = HashMap<usize, Option<Tensor>>;

/// One micro-batch on one stage.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// One entry a segment.
    pub(super) segments: Vec<Held>,
    /// The graph of the loss, where the last segment keeps none that it could be in.
    pub(super) loss: Option<Live>,
}

/// What is kept of a segment.
#[derive(Debug)]
pub(super) enum Held {
    /// Its activations.
    Live(Live),
    /// What it needs to compute them again.
    Inputs(Inputs),
    /// The same in the host's memory.
    Stowed(Stowed<Values>),
    /// The same on its way back.
    Coming(Stowed<PendingH2D>),
    /// Graphs that have them.
    Slot(Box<Slot>),
}

/// What a segment is given, and keeps where it recomputes.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) main: Values,
    /// By skip.
    pub(super) skips: Vec<(usize, Option<Tensor>)>,
    /// What its layers find in buffers that move, where they are to run once more.
    pub(super) before: Before,
}

impl Inputs {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let skips = self.skips.iter().filter_map(|(_, value)| value.as_ref());
        self.main.present().chain(skips)
    }

    /// What the layers are to see: these tensors, or copies of them. Main values that share
    /// memory do so as copies, too; but not `apart`.
    pub(super) fn seen(&self, copies: bool, apart: bool) -> Result<Self, TorchError> {
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
        Ok(Self {
            skips: skips.collect::<Result<_, TorchError>>()?,
            main: if copies && !apart {
                main.try_move(seen)?
            } else {
                main.try_map(seen)?
            },
            before: Before::new(),
        })
    }
}

/// A graph, and where gradients enter and leave it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) graph: Graph,
    /// One entry an incoming value; `None` where no gradient can flow.
    sinks: Vec<Option<Sink>>,
    skip_sinks: Vec<(usize, Option<Sink>)>,
    /// The skips whose values are the graph's first roots; its outputs are the rest.
    pub(super) outgoing: Vec<usize>,
    /// What autograd has saved, where that is in the host's memory meanwhile.
    pub(super) saved: Option<Saved>,
}

/// Which part of the backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// `B`: both at once.
    Joint,
    /// `I`: the gradients of the inputs.
    Input,
}

impl Live {
    pub(super) fn new() -> Result<Self, TorchError> {
        Ok(Self {
            graph: Graph::new()?,
            sinks: Vec::new(),
            skip_sinks: Vec::new(),
            outgoing: Vec::new(),
            saved: None,
        })
    }

    /// The beginning of the graph: the tensors that layers see in place of these.
    pub(super) fn enter(&mut self, inputs: Values) -> Result<Values, TorchError> {
        let inputs: Vec<_> = inputs.into_iter().collect();
        let (seen, sinks) = self.graph.enter(&inputs)?;
        self.sinks = sinks;
        Ok(seen.into_iter().collect())
    }

    /// The same for the value of a skip.
    pub(super) fn enter_skip(
        &mut self,
        skip: usize,
        value: Option<Tensor>,
    ) -> Result<Option<Tensor>, TorchError> {
        let (seen, sinks) = self.graph.enter(&[value])?;
        let sink = sinks.into_iter().next().flatten();
        self.skip_sinks.push((skip, sink));
        Ok(seen.into_iter().next().flatten())
    }

    /// Goes back from the roots; `grads` belong to the outputs, and the skips'
    /// gradients are taken out of `transit`. Puts in those of incoming skips and
    /// returns those of the inputs.
    pub(super) fn backward(
        &mut self,
        half: Half,
        grads: Vec<Option<Tensor>>,
        transit: &mut Transit,
    ) -> Result<Vec<Option<Tensor>>, TorchError> {
        let skips = self.outgoing.iter();
        let mut roots: Vec<_> = skips.map(|skip| transit.remove(skip).flatten()).collect();
        roots.extend(grads);
        match half {
            Half::Joint => self.graph.backward(&roots)?,
            Half::Input => self.graph.backward_input(&roots)?,
        }
        drop(roots);
        for (skip, sink) in std::mem::take(&mut self.skip_sinks) {
            let grad = self.take(sink)?;
            transit.insert(skip, grad);
        }
        std::mem::take(&mut self.sinks)
            .into_iter()
            .map(|sink| self.take(sink))
            .collect()
    }

    fn take(&mut self, sink: Option<Sink>) -> Result<Option<Tensor>, TorchError> {
        sink.map_or(Ok(None), |sink| self.graph.take_grad(sink))
    }
}
