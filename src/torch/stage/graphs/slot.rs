//! Graphs for one micro-batch at a time.

use tch::Tensor;

use super::backward::{BackwardGraph, WeightGraph};
use super::forward::{ForwardGraph, UNIT};
use super::shapes::Shape;
use crate::error::TorchError;
use crate::stage::accumulator::Accumulator;
use crate::stage::border::BorderGradients;
use crate::stage::compute::Compute;
use crate::stage::inputs::Inputs;
use crate::stage::layers::SegmentOutput;
use crate::stage::live::{Half, Live};
use crate::stage::pass::Pass;
use crate::streams::{DeviceStreams, GraphPool};

/// Place of one micro-batch in a stage's graphs.
#[derive(Debug)]
pub(in crate::stage) struct Slot {
    shape: Shape,
    /// Kind of backward of its micro-batches.
    half: Half,
    pool: GraphPool,
    forward: ForwardGraph,
    /// Autograd graph that the capture of the backward runs through.
    live: Option<Live>,
    backward: Option<BackwardGraph>,
    weight: Option<WeightGraph>,
}

impl Slot {
    /// Captures a forward over inputs like these, for micro-batches that come back in this
    /// way.
    pub(super) fn capture(
        streams: &DeviceStreams,
        compute: &mut Compute,
        inputs: &Inputs,
        (shape, half): (Shape, Half),
        pass: Pass<'_>,
    ) -> anyhow::Result<Self> {
        let pool = GraphPool::new()?;
        let (forward, live) = ForwardGraph::capture(streams, pool, compute, inputs, pass)?;
        Ok(Self {
            shape,
            half,
            pool,
            forward,
            live: Some(live),
            backward: None,
            weight: None,
        })
    }

    /// Returns whether it fits micro-batches of this shape and kind of backward.
    pub(super) fn serves(&self, shape: &Shape, half: Half) -> bool {
        self.half == half && self.shape == *shape
    }

    pub(super) fn half(&self) -> Half {
        self.half
    }

    /// Returns whether everything that a micro-batch needs has been captured.
    pub(super) fn is_whole(&self) -> bool {
        self.backward.is_some() && (self.half == Half::Joint || self.weight.is_some())
    }

    /// Returns the inputs of its forward.
    pub(super) fn inputs(&self) -> &Inputs {
        self.forward.inputs()
    }

    /// Moves out the inputs, for another run without graphs.
    pub(super) fn into_inputs(self) -> Inputs {
        self.forward.into_inputs()
    }

    // The forward.

    /// The next replay reads these.
    pub(super) fn fill(&self, inputs: &Inputs) -> Result<(), TorchError> {
        self.forward.fill(inputs)
    }

    /// Gives what leaves: copies, but for outputs that are used before the slot is.
    pub(super) fn replay_forward(
        &self,
        outputs_used_here: bool,
    ) -> Result<SegmentOutput, TorchError> {
        self.forward.graph().replay()?;
        self.forward.output(outputs_used_here)
    }

    // The backward, or its first half.

    pub(super) fn has_backward(&self) -> bool {
        self.backward.is_some()
    }

    /// Returns whether its backward can be replayed with these gradients.
    pub(super) fn fits(&self, roots: &[Option<&Tensor>]) -> bool {
        let backward = self.backward.as_ref();
        backward.is_some_and(|backward| backward.fits(roots))
    }

    /// Captures the backward from gradients like these.
    pub(super) fn capture_backward(
        &mut self,
        streams: &DeviceStreams,
        compute: &Compute,
        accumulator: &Accumulator,
        roots: &[Option<&Tensor>],
    ) -> anyhow::Result<()> {
        let live = self.live.take();
        let mut live =
            live.ok_or_else(|| anyhow::anyhow!("a forward that was gone back through already"))?;
        let incoming = compute.layers().skips().incoming();
        let (to, from) = ((streams, self.pool), (&mut live, self.half));
        let backward = BackwardGraph::capture(to, from, roots, incoming, accumulator)?;
        if self.half == Half::Input {
            self.live = Some(live);
        }
        self.backward = Some(backward);
        Ok(())
    }

    /// Goes back from these gradients to those of the inputs.
    pub(super) fn replay_backward(
        &self,
        (compute, accumulator): (&Compute, &Accumulator),
        grads: &mut BorderGradients,
    ) -> anyhow::Result<()> {
        let backward = self.backward.as_ref();
        let backward =
            backward.ok_or_else(|| anyhow::anyhow!("a backward that was not captured"))?;
        let outgoing = compute.segments().get(UNIT).outgoing().to_vec();
        backward.fill(&grads.roots(&outgoing))?;
        backward.graph().replay()?;
        backward.accumulate(accumulator)?;
        let (main, skips) = backward.copied()?;
        drop(grads.take_roots(&outgoing));
        grads.set_inputs(main, skips);
        Ok(())
    }

    /// Returns copies of the inputs of the last backward replay.
    pub(super) fn copied_roots(&self) -> Result<Vec<Option<Tensor>>, TorchError> {
        match &self.backward {
            Some(backward) => backward.copied_roots(),
            None => Ok(Vec::new()),
        }
    }

    // The second half.

    pub(super) fn has_weight(&self) -> bool {
        self.weight.is_some()
    }

    pub(super) fn capture_weight(
        &mut self,
        streams: &DeviceStreams,
        accumulator: &Accumulator,
    ) -> anyhow::Result<()> {
        let live = self.live.take();
        let mut live =
            live.ok_or_else(|| anyhow::anyhow!("a weight pass without an input pass"))?;
        let to = (streams, self.pool);
        self.weight = Some(WeightGraph::capture(to, &mut live, accumulator)?);
        Ok(())
    }

    pub(super) fn replay_weight(&self, accumulator: &Accumulator) -> anyhow::Result<()> {
        let weight = self.weight.as_ref();
        let weight =
            weight.ok_or_else(|| anyhow::anyhow!("a weight pass that was not captured"))?;
        weight.graph().replay()?;
        weight.accumulate(accumulator)
    }
}
