//! CUDA graphs of libtorch (see `shim/cuda_graphs.cpp`).

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::{Result, c_number, check};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_cuda_graphs() -> c_int;
    fn gp_cuda_graph_pool(first: *mut u64, second: *mut u64) -> c_int;
    fn gp_cuda_graph_begin(device: c_int, first: u64, second: u64, out: *mut *mut c_void) -> c_int;
    fn gp_cuda_graph_end(graph: *mut c_void) -> c_int;
    fn gp_cuda_graph_replay(graph: *mut c_void) -> c_int;
    fn gp_cuda_graph_free(graph: *mut c_void);
    fn gp_host_sync_detect(out: *mut *mut c_void) -> c_int;
    fn gp_host_sync_detected(detector: *mut c_void) -> c_int;
}

/// Serializes captures: beginning and ending one, and dropping a graph, touches process-wide state
/// of libtorch. A failed capture drops its own graph.
static CAPTURING: ReentrantMutex<()> = ReentrantMutex::new(());

/// Checks that this libtorch has CUDA graphs.
pub(crate) fn has_cuda_graphs() -> Result<()> {
    // SAFETY: nothing in, nothing out.
    check(unsafe { gp_cuda_graphs() })
}

/// Makes a memory pool for graphs that are replayed in the order of their capture.
pub(crate) fn cuda_graph_pool() -> Result<(u64, u64)> {
    let (mut first, mut second) = (0, 0);
    // SAFETY: both places live through the call.
    check(unsafe { gp_cuda_graph_pool(&raw mut first, &raw mut second) })?;
    Ok((first, second))
}

/// A captured CUDA graph.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    pointer: NonNull<c_void>,
}

/// A capture in progress on the calling thread.
#[derive(Debug)]
pub(crate) struct Capture {
    graph: CudaGraph,
    _alone: ReentrantMutexGuard<'static, ()>,
}

impl Capture {
    /// Begins a capture: work that the calling thread submits to its current stream of the device
    /// is recorded instead of run, and memory is allocated from the pool.
    #[doc(alias = "capture_begin")]
    pub(crate) fn begin(device: usize, pool: (u64, u64)) -> Result<Self> {
        let alone = CAPTURING.lock();
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned graph after a successful call.
        check(unsafe { gp_cuda_graph_begin(c_number(device), pool.0, pool.1, &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no CUDA graph"))?;
        Ok(Self {
            graph: CudaGraph { pointer },
            _alone: alone,
        })
    }

    /// Ends the capture. The stream then runs its work again, also after an error.
    pub(crate) fn end(self) -> Result<CudaGraph> {
        // SAFETY: the graph is alive, and this is the thread that began the capture: the
        // guard does not leave it.
        check(unsafe { gp_cuda_graph_end(self.graph.pointer.as_ptr()) })?;
        Ok(self.graph)
    }
}

impl CudaGraph {
    /// Submits the graph to the calling thread's current stream.
    pub(crate) fn replay(&self) -> Result<()> {
        // SAFETY: the graph is alive, and its capture has ended well.
        check(unsafe { gp_cuda_graph_replay(self.pointer.as_ptr()) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let _alone = CAPTURING.lock();
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_cuda_graph_free(self.pointer.as_ptr()) }
    }
}

/// Detects operators on this thread that make the host wait for a CUDA device (host syncs).
#[doc(alias = "set_sync_debug_mode")]
#[derive(Debug)]
pub(crate) struct HostSyncDetector {
    pointer: NonNull<c_void>,
}

impl HostSyncDetector {
    /// Begins to detect; `libtorch_cuda` must be loaded.
    pub(crate) fn new() -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned detector after a successful call.
        check(unsafe { gp_host_sync_detect(&raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no detector"))?;
        Ok(Self { pointer })
    }

    /// Returns whether there was a host sync since the beginning.
    pub(crate) fn detected(self) -> bool {
        let own = std::mem::ManuallyDrop::new(self);
        // SAFETY: the pointer is owned by `self`, which is not dropped, and freed here.
        unsafe { gp_host_sync_detected(own.pointer.as_ptr()) != 0 }
    }
}

impl Drop for HostSyncDetector {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once, on the thread that made
        // it, since `self` is not `Send`.
        unsafe { gp_host_sync_detected(self.pointer.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    /// Its functions are looked up by mangled names, which encode their arguments, and the object
    /// lives in a buffer of the shim.
    #[test]
    fn the_class_of_cuda_graphs_is_declared_as_it_was() {
        let header = concat!(env!("LIBTORCH"), "/include/ATen/cuda/CUDAGraph.h");
        let text = std::fs::read_to_string(header).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        for declared in [
            "namespace at { struct Generator;",
            "namespace cuda {",
            "MempoolId_t graph_pool_handle();",
            "struct TORCH_CUDA_CPP_API CUDAGraph { CUDAGraph(bool keep_graph=false); ~CUDAGraph();",
            "void capture_begin( MempoolId_t pool = {0, 0}, cudaStreamCaptureMode capture_mode",
            "void capture_end();",
            "void replay();",
        ] {
            assert!(text.contains(declared), "no `{declared}`");
        }
        // Neither a base class nor virtual functions, and few members: far fewer bytes than the
        // buffer has.
        let (_, class) = text
            .split_once("struct TORCH_CUDA_CPP_API CUDAGraph {")
            .unwrap();
        assert!(!class.contains("virtual "));
        assert!(
            class.matches("_;").count() + class.matches("_ =").count() < 20,
            "{class}"
        );
    }
}
