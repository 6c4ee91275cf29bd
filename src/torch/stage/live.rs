//! A segment's autograd graph for one micro-batch.

use tch::Tensor;

use super::border::{BorderGradients, SkipList};
use super::offload::SavedTensors;
use crate::error::TorchError;
use crate::ffi::{Graph, SavedTensorScope, Sink};
use crate::values::{Values, hand_over};

/// An autograd graph, and where gradients enter and leave it.
#[derive(Debug)]
pub(super) struct Live {
    graph: Graph,
    /// One entry per incoming value; `None` where no gradient can flow.
    sinks: Vec<Option<Sink>>,
    skip_sinks: Vec<(usize, Option<Sink>)>,
    /// The skips whose values are the graph's first roots; its outputs are the rest.
    outgoing: Vec<usize>,
    /// Tensors saved by autograd, if they are offloaded.
    saved: Option<SavedTensors>,
}

/// Part of the backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    /// `B`: both at once.
    Joint,
    /// `I`: the gradients of the inputs.
    Input,
}

impl Live {
    pub(super) fn new(saved: Option<SavedTensors>) -> Result<Self, TorchError> {
        Ok(Self {
            graph: Graph::new()?,
            sinks: Vec::new(),
            skip_sinks: Vec::new(),
            outgoing: Vec::new(),
            saved,
        })
    }

    // The forward.

    /// The beginning of the graph: the tensors that layers see in place of these.
    pub(super) fn enter(&mut self, inputs: Values) -> Result<Values, TorchError> {
        let inputs: Vec<_> = inputs.into_iter().collect();
        let (seen, sinks) = self.graph.enter(&inputs)?;
        self.sinks = sinks;
        Ok(seen.into_iter().collect())
    }

    /// Does the same for the value of a skip.
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

    /// Offloads the tensors that autograd saves while the result lives, if requested.
    #[doc(alias = "saved_tensors_hooks")]
    pub(super) fn saving(&self) -> Option<SavedTensorScope<'_>> {
        self.saved.as_ref().map(SavedTensors::enter)
    }

    /// Does the same for the loss function; the caller's targets stay where they are.
    pub(super) fn saving_loss(
        &self,
        targets: &Values,
    ) -> Result<Option<SavedTensorScope<'_>>, TorchError> {
        if let Some(saved) = &self.saved {
            saved.keep(targets.present())?;
        }
        Ok(self.saving())
    }

    /// A layer is done: its backward is known by its number from now on.
    pub(super) fn layer_done(&mut self, outputs: &Values, number: usize) -> Result<(), TorchError> {
        let mut outputs = outputs.present();
        outputs.try_for_each(|output| self.graph.mark(output, number))?;
        self.saved_some()
    }

    /// Offloads the tensors saved since the last call, if requested.
    pub(super) fn saved_some(&mut self) -> Result<(), TorchError> {
        match &mut self.saved {
            Some(saved) => saved.offload(),
            None => Ok(()),
        }
    }

    /// The value of a skip that leaves the graph, which is a root; gives it detached.
    pub(super) fn skip_root(
        &mut self,
        skip: usize,
        value: Option<&Tensor>,
    ) -> Result<Option<Tensor>, TorchError> {
        self.graph.roots(std::iter::once(value))?;
        self.outgoing.push(skip);
        value.map(hand_over).transpose()
    }

    /// The graph's outputs are its last roots.
    pub(super) fn roots(&mut self, outputs: &Values) -> Result<(), TorchError> {
        self.graph.roots(outputs.iter())
    }

    /// The loss is the last root; its gradient is `seed`, times `scale` on its device where
    /// there is one. `number` stands for it among the layers.
    pub(super) fn loss_root(
        &mut self,
        loss: &Tensor,
        (seed, scale): (f64, Option<&Tensor>),
        number: usize,
    ) -> Result<(), TorchError> {
        self.graph.loss(loss, seed, scale)?;
        self.graph.mark(loss, number)
    }

    /// A root that brings no gradient.
    pub(super) fn root_without_gradient(&mut self, loss: &Tensor) -> Result<(), TorchError> {
        self.graph.roots(std::iter::once(Some(loss)))
    }

    // The backward.

    /// The skips that leave it.
    pub(super) fn outgoing(&self) -> &[usize] {
        &self.outgoing
    }

    /// Begins to bring back to the device what has been offloaded.
    pub(super) fn prefetch(&mut self) -> Result<(), TorchError> {
        match &mut self.saved {
            Some(saved) => saved.prefetch(),
            None => Ok(()),
        }
    }

    /// Goes back from the roots, whose gradients are taken out of `grads`; puts in those of
    /// the inputs, and of skips that reach the graph.
    pub(super) fn backward(
        &mut self,
        half: Half,
        grads: &mut BorderGradients,
    ) -> Result<(), TorchError> {
        if let Some(saved) = &mut self.saved {
            saved.bring_back()?;
        }
        let roots = grads.take_roots(&self.outgoing);
        match half {
            Half::Joint => self.graph.backward(&roots)?,
            Half::Input => self.graph.backward_input(&roots)?,
        }
        drop(roots);
        let mut skips = SkipList::new();
        for (skip, sink) in std::mem::take(&mut self.skip_sinks) {
            skips.push((skip, self.take(sink)?));
        }
        let sinks = std::mem::take(&mut self.sinks).into_iter();
        let main = sinks.map(|sink| self.take(sink));
        grads.set_inputs(main.collect::<Result<_, _>>()?, skips);
        Ok(())
    }

    /// The second half: the gradients of parameters.
    pub(super) fn backward_weight(&mut self) -> Result<(), TorchError> {
        self.graph.backward_weight()
    }

    /// The layer whose backward ran last.
    pub(super) fn layer(&self) -> Option<usize> {
        self.graph.layer()
    }

    fn take(&mut self, sink: Option<Sink>) -> Result<Option<Tensor>, TorchError> {
        sink.map_or(Ok(None), |sink| self.graph.take_grad(sink))
    }
}
