//! Graphs: what the main stream is told, written down once and run as one piece.

use super::backend::{Layer, Place};
use super::device_streams::Lane;
use crate::torch::error::TorchError;
use crate::torch::ffi;

/// Memory of its own for graphs that are always run in the order of their capture, so
/// that a later one may use what an earlier one no longer needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pool {
    Cuda(u64, u64),
    Recorded,
}

/// A graph.
#[derive(Debug)]
pub(crate) enum Captured {
    Cuda(ffi::CudaGraph),
    Recorded(u64),
}

impl Lane {
    /// Whether nobody writes anything down: what a graph holds must be done once more
    /// where it is replayed, and to capture it is to do it.
    pub(crate) fn rehearses(&self) -> bool {
        matches!(self.on_accelerator(), Some((Layer::Recorder(_), _)))
    }

    /// Memory for the graphs of one slot.
    pub(crate) fn pool(&self) -> Result<Pool, TorchError> {
        match self.on_accelerator() {
            Some((Layer::Cuda, _)) => {
                let (first, second) = ffi::cuda_graph_pool()?;
                Ok(Pool::Cuda(first, second))
            }
            Some((Layer::Recorder(_), _)) => Ok(Pool::Recorded),
            None => Err(no_graphs()),
        }
    }

    /// Writes down what `body` tells the main stream. Nothing of it runs, and nobody else
    /// tells the device anything (rule 9). The capture is over afterwards, whatever happens; only one that ended well gives a graph.
    pub(crate) fn capture<T>(
        &self,
        pool: Pool,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(Captured, T)> {
        self.alone(|| self.capture_alone(pool, body))
    }

    fn capture_alone<T>(
        &self,
        pool: Pool,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(Captured, T)> {
        match (self.on_accelerator(), pool) {
            (Some((Layer::Cuda, device)), Pool::Cuda(first, second)) => {
                let capture = ffi::Capture::begin(device, (first, second))?;
                let done = crate::torch::caught(body);
                let graph = capture.end();
                // What went wrong in it says more than that it went wrong.
                let done = done?;
                Ok((Captured::Cuda(graph?), done))
            }
            (Some((Layer::Recorder(recorder), device)), Pool::Recorded) => {
                let number = recorder.begin_capture(device);
                let done = crate::torch::caught(body);
                let ended = recorder.end_capture(number);
                let done = done?;
                ended?;
                Ok((Captured::Recorded(number), done))
            }
            _ => Err(no_graphs().into()),
        }
    }

    /// Puts a graph into the main stream.
    pub(crate) fn replay(&self, graph: &Captured) -> Result<(), TorchError> {
        match (self.on_accelerator(), graph) {
            (Some((Layer::Cuda, _)), Captured::Cuda(graph)) => graph.replay(),
            (Some((Layer::Recorder(recorder), device)), Captured::Recorded(number)) => {
                recorder.replay(*number, device);
                Ok(())
            }
            _ => Err(no_graphs()),
        }
    }

    /// Hears whether `body` has the host wait for the accelerator, which nothing in a
    /// graph may.
    pub(crate) fn listening<T>(
        &self,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, bool)> {
        let Some((Layer::Cuda, _)) = self.on_accelerator() else {
            return Ok((body()?, false));
        };
        let listener = ffi::Listener::new()?;
        let done = body();
        let heard = listener.heard();
        Ok((done?, heard))
    }
}

/// Whether graphs can be captured on a place of this layer.
pub(crate) fn can_capture(layer: &Layer, place: Place) -> Result<(), TorchError> {
    match (layer, place) {
        (Layer::Cuda, Place::Accelerator(_)) => ffi::has_cuda_graphs(),
        _ => Ok(()),
    }
}

fn no_graphs() -> TorchError {
    TorchError::new("a graph where there is no accelerator, or another one's")
}
