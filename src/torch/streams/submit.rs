//! Guards for submitting work to a device, and for exclusive use to capture a graph (rule 9).

use super::backend::Backend;
use super::capture_lock::{CaptureLock, CaptureLocks, SubmitGuard};
use super::device_streams::DeviceStreams;
use super::held::Held;
use super::left_out::left_out;

/// The locks of libtorch's devices, for all pipelines of the process.
static CUDA: CaptureLocks = CaptureLocks::new();

impl Backend {
    fn capture_lock(&self, device: usize) -> CaptureLock {
        match self {
            Self::Cuda => CUDA.of(device),
            Self::Recorder(recorder) => recorder.capture_locks().of(device),
        }
    }

    /// Prevents captures of graphs on the device while the result lives. A thread that has a guard
    /// of another device may take one: it does not queue behind a thread that waits to capture,
    /// with which it could deadlock.
    #[track_caller]
    pub fn submit_guard(&self, device: usize) -> SubmitGuard {
        if left_out("submit_guard") {
            return SubmitGuard::left_out();
        }
        SubmitGuard::new(self.capture_lock(device).read_arc_recursive(), device)
    }
}

/// Scope in which no other thread captures a graph on the streams' device. Scopes nest.
#[derive(Debug)]
#[must_use = "other threads may capture once this is dropped"]
pub(crate) struct SubmitScope<'a> {
    streams: &'a DeviceStreams,
    outermost: bool,
}

impl DeviceStreams {
    /// Opens a scope for submitting work to the device.
    #[track_caller]
    pub(crate) fn submit_scope(&self) -> SubmitScope<'_> {
        if left_out("submit_scope") {
            return SubmitScope {
                streams: self,
                outermost: false,
            };
        }
        let mut guard = self.submit_guard.borrow_mut();
        let own = self.on_accelerator().filter(|_| guard.is_none());
        let outermost = own.is_some();
        if let Some((backend, device)) = own {
            let shared = backend.capture_lock(device).read_arc();
            *guard = Some(SubmitGuard::new(shared, device));
        }
        drop(guard);
        SubmitScope {
            streams: self,
            outermost,
        }
    }

    /// Runs `body` while no other thread submits work to the device. The calling thread's own
    /// guard, if it has one, is released meanwhile.
    pub(super) fn exclusively<T>(&self, body: impl FnOnce() -> T) -> T {
        let Some((backend, device)) = self.on_accelerator() else {
            return body();
        };
        if left_out("capture lock") {
            return body();
        }
        let capture_lock = backend.capture_lock(device);
        let shared = self.submit_guard.take().map(drop).is_some();
        let alone = (capture_lock.write(), Held::new(device));
        let done = body();
        drop(alone);
        if shared {
            let shared = SubmitGuard::new(capture_lock.read_arc(), device);
            self.submit_guard.replace(Some(shared));
        }
        done
    }
}

impl Drop for SubmitScope<'_> {
    fn drop(&mut self) {
        if self.outermost {
            drop(self.streams.submit_guard.take());
        }
    }
}
