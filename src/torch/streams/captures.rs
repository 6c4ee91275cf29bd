//! CUDA graphs: the work of a pass, captured once and replayed as one piece.

use super::device_streams::DeviceStreams;
use crate::error::TorchError;
use crate::ffi::{self, CudaGraph};

/// A memory pool for graphs that are always replayed in the order of their capture, so that
/// a later graph may reuse memory that an earlier one no longer needs.
#[doc(alias = "graph_pool_handle")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraphPool(u64, u64);

impl GraphPool {
    pub(crate) fn new() -> Result<Self, TorchError> {
        let (first, second) = ffi::cuda_graph_pool()?;
        Ok(Self(first, second))
    }
}

impl DeviceStreams {
    /// Captures what `body` submits to the main stream. None of it runs, and no other thread
    /// submits work to the device meanwhile (rule 9). The capture has ended when this returns,
    /// also with an error.
    pub(crate) fn capture<T>(
        &self,
        GraphPool(first, second): GraphPool,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(CudaGraph, T)> {
        let device = self.on_accelerator();
        let device =
            device.ok_or_else(|| TorchError::new("a CUDA graph without its accelerator"))?;
        self.exclusively(|| {
            let capture = ffi::Capture::begin(device, (first, second))?;
            let done = crate::caught(body);
            let graph = capture.end();
            // The error of the body says more than that the capture failed.
            let done = done?;
            Ok((graph?, done))
        })
    }

    /// Detects whether `body` has the host wait for the accelerator (a host sync), which is
    /// impossible in a graph.
    #[doc(alias = "set_sync_debug_mode")]
    pub(crate) fn detect_host_sync<T>(
        &self,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, bool)> {
        if self.accelerator.is_none() {
            return Ok((body()?, false));
        }
        let detector = ffi::HostSyncDetector::new()?;
        let done = body();
        let detected = detector.detected();
        Ok((done?, detected))
    }
}
