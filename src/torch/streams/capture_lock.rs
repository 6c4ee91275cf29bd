//! Lock that keeps other threads off a device while a graph is captured on it (rule 9).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, Mutex, RawRwLock, RwLock};

use super::held::Held;

/// The lock of one device: readers submit work to the device, the writer captures a graph.
#[doc(alias = "CUDA graph capture")]
pub(super) type CaptureLock = Arc<RwLock<()>>;

/// Guard during which no graph is captured on the device.
#[derive(Debug)]
pub struct SubmitGuard {
    _lock: ArcRwLockReadGuard<RawRwLock, ()>,
    /// `None` for a guard that is left out.
    _held: Option<Held>,
}

impl SubmitGuard {
    pub(super) fn new(lock: ArcRwLockReadGuard<RawRwLock, ()>, device: usize) -> Self {
        Self {
            _lock: lock,
            _held: Some(Held::new(device)),
        }
    }

    /// Makes a guard of a private lock.
    pub(super) fn left_out() -> Self {
        Self {
            _lock: CaptureLock::default().read_arc(),
            _held: None,
        }
    }
}

/// The locks by device.
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
