//! Graphs: what the main stream is told, written down once and run as one piece.

use super::backend::{Backend, MemorySpace};
use super::device_streams::DeviceStreams;
use crate::torch::error::TorchError;
use crate::torch::ffi;

/// Memory of its own for graphs that are always run in the order of their capture, so
/// that a later one may use what an earlier one no longer needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GraphPool {
    Cuda(u64, u64),
    Recorded,
}

/// A graph.
#[derive(Debug)]
pub(crate) enum CapturedGraph {
    Cuda(ffi::CudaGraph),
    Recorded(u64),
}

impl DeviceStreams {
    /// Whether nobody writes anything down: what a graph holds must be done once more
    /// where it is replayed, and to capture it is to do it.
    pub(crate) fn rehearses(&self) -> bool {
        matches!(self.on_accelerator(), Some((Backend::Recorder(_), _)))
    }

    /// Memory for the graphs of one slot.
    pub(crate) fn pool(&self) -> Result<GraphPool, TorchError> {
        match self.on_accelerator() {
            Some((Backend::Cuda, _)) => {
                let (first, second) = ffi::cuda_graph_pool()?;
                Ok(GraphPool::Cuda(first, second))
            }
            Some((Backend::Recorder(_), _)) => Ok(GraphPool::Recorded),
            None => Err(no_graphs()),
        }
    }

    /// Writes down what `body` tells the main stream. Nothing of it runs, and nobody else
    /// tells the device anything (rule 9). The capture is over afterwards, whatever happens; only one that ended well gives a graph.
    pub(crate) fn capture<T>(
        &self,
        pool: GraphPool,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(CapturedGraph, T)> {
        self.exclusively(|| self.capture_alone(pool, body))
    }

    fn capture_alone<T>(
        &self,
        pool: GraphPool,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(CapturedGraph, T)> {
        match (self.on_accelerator(), pool) {
            (Some((Backend::Cuda, device)), GraphPool::Cuda(first, second)) => {
                let capture = ffi::Capture::begin(device, (first, second))?;
                let done = crate::torch::caught(body);
                let graph = capture.end();
                // What went wrong in it says more than that it went wrong.
                let done = done?;
                Ok((CapturedGraph::Cuda(graph?), done))
            }
            (Some((Backend::Recorder(recorder), device)), GraphPool::Recorded) => {
                let number = recorder.begin_capture(device);
                let done = crate::torch::caught(body);
                let ended = recorder.end_capture(number);
                let done = done?;
                ended?;
                Ok((CapturedGraph::Recorded(number), done))
            }
            _ => Err(no_graphs().into()),
        }
    }

    /// Puts a graph into the main stream.
    pub(crate) fn replay(&self, graph: &CapturedGraph) -> Result<(), TorchError> {
        match (self.on_accelerator(), graph) {
            (Some((Backend::Cuda, _)), CapturedGraph::Cuda(graph)) => graph.replay(),
            (Some((Backend::Recorder(recorder), device)), CapturedGraph::Recorded(number)) => {
                recorder.replay(*number, device);
                Ok(())
            }
            _ => Err(no_graphs()),
        }
    }

    /// Hears whether `body` has the host wait for the accelerator, which nothing in a
    /// graph may.
    pub(crate) fn detect_host_sync<T>(
        &self,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, bool)> {
        let Some((Backend::Cuda, _)) = self.on_accelerator() else {
            return Ok((body()?, false));
        };
        let detector = ffi::HostSyncDetector::new()?;
        let done = body();
        let detected = detector.detected();
        Ok((done?, detected))
    }
}

/// Whether graphs can be captured on a place of this backend.
pub(crate) fn can_capture(backend: &Backend, place: MemorySpace) -> Result<(), TorchError> {
    match (backend, place) {
        (Backend::Cuda, MemorySpace::Accelerator(_)) => ffi::has_cuda_graphs(),
        _ => Ok(()),
    }
}

fn no_graphs() -> TorchError {
    TorchError::new("a graph where there is no accelerator, or another one's")
}
