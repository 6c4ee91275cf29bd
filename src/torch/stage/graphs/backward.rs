//! Graphs of a slot's backward: joint, or in two halves.

use tch::Tensor;

use super::copies::{copy, copy_list, copy_skips, fill};
use super::shapes::{Shape, shape};
use crate::error::TorchError;
use crate::ffi::CudaGraph;
use crate::stage::accumulator::{Accumulator, Gradients};
use crate::stage::border::{BorderGradients, SkipList};
use crate::stage::live::{Half, Live};
use crate::streams::{DeviceStreams, GraphPool};

/// The graph of the backward, or of its first half.
#[derive(Debug)]
pub(super) struct BackwardGraph {
    graph: CudaGraph,
    /// Input gradients: of outgoing skips, then of the outputs.
    roots: Vec<Option<Tensor>>,
    shape: Shape,
    /// Gradients of the inputs, and of arriving skips.
    main: Vec<Option<Tensor>>,
    skips: SkipList,
    /// Gradients of parameters, for the joint backward.
    gradients: Gradients,
}

/// The graph of the second half of the backward.
#[derive(Debug)]
pub(super) struct WeightGraph {
    graph: CudaGraph,
    gradients: Gradients,
}

impl BackwardGraph {
    /// Captures the backward from gradients like these; `incoming` are the skips that reach
    /// the stage.
    pub(super) fn capture(
        (streams, pool): (&DeviceStreams, GraphPool),
        (live, half): (&mut Live, Half),
        roots: &[Option<&Tensor>],
        incoming: &[usize],
        accumulator: &Accumulator,
    ) -> anyhow::Result<Self> {
        let Some(shape) = shape(roots.iter().copied()) else {
            anyhow::bail!("a gradient has no strides");
        };
        let roots = roots.iter().map(|root| copy(*root));
        let roots: Vec<Option<Tensor>> = roots.collect::<Result<_, _>>()?;
        let (captured, gradients) = accumulator.alone(|| {
            streams.capture(pool, || {
                let mut grads = BorderGradients::from_roots(live.outgoing(), &roots);
                live.backward(half, &mut grads)?;
                Ok(grads.into_parts())
            })
        })?;
        let (graph, (main, mut skips)) = captured?;
        check_dense(&gradients)?;
        let backward = Self {
            graph,
            roots,
            shape,
            main,
            skips: incoming
                .iter()
                .map(|skip| (*skip, skips.take(*skip)))
                .collect(),
            gradients,
        };
        backward.copied()?;
        Ok(backward)
    }

    pub(super) fn graph(&self) -> &CudaGraph {
        &self.graph
    }

    /// Returns whether it can be replayed with these gradients.
    pub(super) fn fits(&self, roots: &[Option<&Tensor>]) -> bool {
        shape(roots.iter().copied()).as_ref() == Some(&self.shape)
    }

    /// The next replay reads these.
    pub(super) fn fill(&self, roots: &[Option<&Tensor>]) -> Result<(), TorchError> {
        fill(self.roots.iter().map(Option::as_ref), roots.iter().copied())
    }

    /// Returns copies of the last replay's inputs.
    pub(super) fn copied_roots(&self) -> Result<Vec<Option<Tensor>>, TorchError> {
        copy_list(&self.roots)
    }

    /// Adds the last replay's gradients to the parameters'.
    pub(super) fn accumulate(&self, accumulator: &Accumulator) -> anyhow::Result<()> {
        accumulator.add_copies(&self.gradients)
    }

    /// The others: copies, to be kept by others.
    pub(super) fn copied(&self) -> Result<(Vec<Option<Tensor>>, SkipList), TorchError> {
        Ok((copy_list(&self.main)?, copy_skips(&self.skips)?))
    }
}

impl WeightGraph {
    /// Captures the second half of a backward.
    pub(super) fn capture(
        (streams, pool): (&DeviceStreams, GraphPool),
        live: &mut Live,
        accumulator: &Accumulator,
    ) -> anyhow::Result<Self> {
        let (captured, gradients) =
            accumulator.alone(|| streams.capture(pool, || Ok(live.backward_weight()?)))?;
        let (graph, ()) = captured?;
        check_dense(&gradients)?;
        Ok(Self { graph, gradients })
    }

    pub(super) fn graph(&self) -> &CudaGraph {
        &self.graph
    }

    /// Adds the last replay's gradients to the parameters'.
    pub(super) fn accumulate(&self, accumulator: &Accumulator) -> anyhow::Result<()> {
        accumulator.add_copies(&self.gradients)
    }
}

/// Sparse gradients change their shape from one micro-batch to the next.
fn check_dense(gradients: &[Option<Tensor>]) -> anyhow::Result<()> {
    let sparse = gradients.iter().flatten().any(Tensor::is_sparse);
    anyhow::ensure!(!sparse, "a parameter's gradient is sparse");
    Ok(())
}
