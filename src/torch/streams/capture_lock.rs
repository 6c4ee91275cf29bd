//! Who may tell a device something while a graph is captured on it: nobody else (rule 9).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, Mutex, RawRwLock, RwLock};

use super::backend::Backend;
use super::device_streams::DeviceStreams;

/// One of a device: shared by all who tell it something, and had alone by who captures.
pub(super) type CaptureLock = Arc<RwLock<()>>;

/// A share of it.
pub(crate) type SubmitGuard = ArcRwLockReadGuard<RawRwLock, ()>;

/// By device.
#[derive(Debug, Default)]
pub(super) struct CaptureLocks(Mutex<BTreeMap<usize, CaptureLock>>);

impl CaptureLocks {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(super) fn of(&self, device: usize) -> CaptureLock {
        Arc::clone(self.0.lock().entry(device).or_default())
    }
}

/// That of libtorch's devices, for all pipelines of the process.
static CUDA: CaptureLocks = CaptureLocks::new();

impl Backend {
    fn capture_lock(&self, device: usize) -> CaptureLock {
        match self {
            Self::Cuda => CUDA.of(device),
            Self::Recorder(recorder) => recorder.capture_locks().of(device),
        }
    }

    /// While the result lives, nobody captures on a device: for who may share another one
    /// already, and so does not stand back for one that waits to have it alone.
    pub(crate) fn submit_guard(&self, device: usize) -> SubmitGuard {
        self.capture_lock(device).read_arc_recursive()
    }
}

/// While it lives, nobody else captures on the streams' device.
#[derive(Debug)]
#[must_use = "the device is shared only while this lives"]
pub(crate) struct SubmitScope<'a> {
    streams: &'a DeviceStreams,
    outermost: bool,
}

impl DeviceStreams {
    /// For everything that tells the device something.
    pub(crate) fn submit_scope(&self) -> SubmitScope<'_> {
        let mut share = self.share.borrow_mut();
        let capture_lock = self.on_accelerator().filter(|_| share.is_none());
        let capture_lock = capture_lock.map(|(backend, device)| backend.capture_lock(device));
        let outermost = capture_lock.is_some();
        if let Some(capture_lock) = capture_lock {
            *share = Some(capture_lock.read_arc());
        }
        drop(share);
        SubmitScope {
            streams: self,
            outermost,
        }
    }

    /// Does something with nobody else telling the device anything; who shares it lets go of
    /// it meanwhile.
    pub(super) fn exclusively<T>(&self, body: impl FnOnce() -> T) -> T {
        let Some((backend, device)) = self.on_accelerator() else {
            return body();
        };
        let capture_lock = backend.capture_lock(device);
        let shared = self.share.take().map(drop).is_some();
        let alone = capture_lock.write();
        let done = body();
        drop(alone);
        if shared {
            self.share.replace(Some(capture_lock.read_arc()));
        }
        done
    }
}

impl Drop for SubmitScope<'_> {
    fn drop(&mut self) {
        if self.outermost {
            drop(self.streams.share.take());
        }
    }
}
