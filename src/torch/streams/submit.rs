//! Guards for submitting work to a device, and for exclusive use to capture a graph (rule 9).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, Mutex, RawRwLock, RwLock};

use super::device_streams::DeviceStreams;
use super::held::Held;
use super::left_out::left_out;

/// The lock of one device: readers submit work to the device, the writer captures a graph.
#[doc(alias = "CUDA graph capture")]
type CaptureLock = Arc<RwLock<()>>;

/// Guard during which no graph is captured on the device.
#[derive(Debug)]
pub struct SubmitGuard {
    _lock: ArcRwLockReadGuard<RawRwLock, ()>,
    /// `None` for a guard that is left out.
    _held: Option<Held>,
}

impl SubmitGuard {
    fn new(lock: ArcRwLockReadGuard<RawRwLock, ()>, device: usize) -> Self {
        Self {
            _lock: lock,
            _held: Some(Held::new(device)),
        }
    }

    /// Makes a guard of a private lock.
    fn left_out() -> Self {
        Self {
            _lock: CaptureLock::default().read_arc(),
            _held: None,
        }
    }
}

/// The locks by device, for all pipelines of the process.
static LOCKS: Mutex<BTreeMap<usize, CaptureLock>> = Mutex::new(BTreeMap::new());

fn capture_lock(device: usize) -> CaptureLock {
    Arc::clone(LOCKS.lock().entry(device).or_default())
}

/// Prevents captures of graphs on the device while the result lives. A thread that has a guard of
/// another device may take one: it does not queue behind a thread that waits to capture, with which
/// it could deadlock.
#[track_caller]
pub fn submit_guard(device: usize) -> SubmitGuard {
    if left_out("submit_guard") {
        return SubmitGuard::left_out();
    }
    SubmitGuard::new(capture_lock(device).read_arc_recursive(), device)
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
        if let Some(device) = own {
            let shared = capture_lock(device).read_arc();
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
        let Some(device) = self.on_accelerator() else {
            return body();
        };
        if left_out("capture lock") {
            return body();
        }
        let capture_lock = capture_lock(device);
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
