//! The graph of a slot's forward.

use super::copies::{copy_inputs, copy_skips, copy_values, fill};
use crate::error::TorchError;
use crate::ffi::CudaGraph;
use crate::stage::border::SkipList;
use crate::stage::compute::Compute;
use crate::stage::inputs::Inputs;
use crate::stage::layers::SegmentOutput;
use crate::stage::live::Live;
use crate::stage::pass::Pass;
use crate::stage::segment::RunUnit;
use crate::streams::{DeviceStreams, GraphPool};
use crate::values::{Values, hand_over};

/// The stage's only segment: stages that recompute have no graphs.
pub(super) const SEGMENT: usize = 0;
pub(super) const UNIT: RunUnit = RunUnit::Segment(SEGMENT);

/// The graph of a slot's forward, with the tensors that it reads and writes.
#[derive(Debug)]
pub(super) struct ForwardGraph {
    graph: CudaGraph,
    inputs: Inputs,
    outputs: Values,
    /// Outgoing skips.
    skips: SkipList,
}

impl ForwardGraph {
    /// Captures the forward over inputs like these; gives the autograd graph, too, which the
    /// capture of the backward goes back through.
    pub(super) fn capture(
        streams: &DeviceStreams,
        pool: GraphPool,
        compute: &mut Compute,
        inputs: &Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<(Self, Live)> {
        let mut inputs = copy_inputs(inputs)?;
        let writes = compute.segments().get(UNIT).writes();
        // Should the backward need another run, that finds what was in the buffers.
        let (graph, output) = streams.capture(pool, || {
            inputs.set_buffers(compute.moving_buffers(UNIT)?);
            compute.run(UNIT, &inputs, pass)
        })?;
        anyhow::ensure!(
            compute.segments().get(UNIT).writes() == writes,
            "its layers change a value in place now and then"
        );
        let (values, skips, mut live) = output.into_live()?;
        anyhow::ensure!(
            !values.share_memory()?,
            "its outputs share memory with each other"
        );
        compute
            .layers()
            .audit()
            .map_or(Ok(()), |audit| audit.check())?;
        live.roots(&values)?;
        let forward = Self {
            graph,
            inputs,
            outputs: values.try_move(|tensor| hand_over(&tensor))?,
            skips,
        };
        // Detects values that cannot be copied.
        forward.output(false)?;
        Ok((forward, live))
    }

    pub(super) fn graph(&self) -> &CudaGraph {
        &self.graph
    }

    pub(super) fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    pub(super) fn into_inputs(self) -> Inputs {
        self.inputs
    }

    /// The next replay reads these.
    pub(super) fn fill(&self, inputs: &Inputs) -> Result<(), TorchError> {
        fill(self.inputs.all(), inputs.all())
    }

    /// Returns the last replay's outputs: copies, unless they are used before the slot is replayed
    /// again.
    pub(super) fn output(&self, outputs_used_here: bool) -> Result<SegmentOutput, TorchError> {
        let values = if outputs_used_here {
            self.outputs.shallow_clone()
        } else {
            copy_values(&self.outputs)?
        };
        Ok(SegmentOutput::new(values, copy_skips(&self.skips)?))
    }
}
