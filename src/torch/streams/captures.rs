//! CUDA graphs: the work of a pass, captured once and replayed as one piece.

use super::backend::Backend;
use super::device_streams::DeviceStreams;
use super::ids::MemorySpace;
use crate::error::TorchError;
use crate::ffi;

/// A memory pool for graphs that are always replayed in the order of their capture, so that
/// a later graph may reuse memory that an earlier one no longer needs.
#[doc(alias = "graph_pool_handle")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum GraphPool {
    Cuda(u64, u64),
    Recorded,
}

/// A captured graph.
#[doc(alias = "CUDA graph")]
#[doc(alias = "CUDAGraph")]
#[derive(Debug)]
pub(crate) enum CapturedGraph {
    Cuda(ffi::CudaGraph),
    Recorded(u64),
}

impl DeviceStreams {
    /// Returns whether captures are only emulated, by a recorder: then no graph exists. The work
    /// runs while it is captured, and has to be run again wherever the graph is replayed.
    pub(crate) fn emulates_graphs(&self) -> bool {
        matches!(self.on_accelerator(), Some((Backend::Recorder(_), _)))
    }

    /// A memory pool for the graphs of one slot.
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

    /// Captures what `body` submits to the main stream. None of it runs, and no other thread
    /// submits work to the device meanwhile (rule 9). The capture has ended when this returns,
    /// also with an error.
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
                let done = crate::caught(body);
                let graph = capture.end();
                // The error of the body says more than that the capture failed.
                let done = done?;
                Ok((CapturedGraph::Cuda(graph?), done))
            }
            (Some((Backend::Recorder(recorder), device)), GraphPool::Recorded) => {
                let number = recorder.begin_capture(device);
                let done = crate::caught(body);
                let ended = recorder.end_capture(number);
                let done = done?;
                ended?;
                Ok((CapturedGraph::Recorded(number), done))
            }
            _ => Err(no_graphs().into()),
        }
    }

    /// Submits a graph to the main stream.
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

    /// Detects whether `body` has the host wait for the accelerator (a host sync), which is
    /// impossible in a graph.
    #[doc(alias = "set_sync_debug_mode")]
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

/// Checks that graphs can be captured in a memory space of this backend.
pub(crate) fn can_capture(backend: &Backend, place: MemorySpace) -> Result<(), TorchError> {
    match (backend, place) {
        (Backend::Cuda, MemorySpace::Accelerator(_)) => ffi::has_cuda_graphs(),
        _ => Ok(()),
    }
}

fn no_graphs() -> TorchError {
    TorchError::new("a CUDA graph without its accelerator")
}
