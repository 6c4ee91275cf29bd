//! Who may tell a device something while a graph is captured on it: nobody else (rule 9).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, Mutex, RawRwLock, RwLock};

use super::backend::Layer;
use super::device_streams::Lane;

/// One of a device: shared by all who tell it something, and had alone by who captures.
pub(super) type Access = Arc<RwLock<()>>;

/// A share of it.
pub(crate) type Share = ArcRwLockReadGuard<RawRwLock, ()>;

/// By device.
#[derive(Debug, Default)]
pub(super) struct Accesses(Mutex<BTreeMap<usize, Access>>);

impl Accesses {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(super) fn of(&self, device: usize) -> Access {
        Arc::clone(self.0.lock().entry(device).or_default())
    }
}

/// That of libtorch's devices, for all pipelines of the process.
static CUDA: Accesses = Accesses::new();

impl Layer {
    fn access(&self, device: usize) -> Access {
        match self {
            Self::Cuda => CUDA.of(device),
            Self::Recorder(recorder) => recorder.accesses().of(device),
        }
    }

    /// While the result lives, nobody captures on a device: for who may share another one
    /// already, and so does not stand back for one that waits to have it alone.
    pub(crate) fn share(&self, device: usize) -> Share {
        self.access(device).read_arc_recursive()
    }
}

/// While it lives, nobody else captures on the lane's device.
#[derive(Debug)]
#[must_use = "the device is shared only while this lives"]
pub(crate) struct Sharing<'a> {
    lane: &'a Lane,
    outermost: bool,
}

impl Lane {
    /// For everything that tells the device something.
    pub(crate) fn sharing(&self) -> Sharing<'_> {
        let mut share = self.share.borrow_mut();
        let access = self.on_accelerator().filter(|_| share.is_none());
        let access = access.map(|(layer, device)| layer.access(device));
        let outermost = access.is_some();
        if let Some(access) = access {
            *share = Some(access.read_arc());
        }
        drop(share);
        Sharing {
            lane: self,
            outermost,
        }
    }

    /// Does something with nobody else telling the device anything; who shares it lets go of
    /// it meanwhile.
    pub(super) fn alone<T>(&self, body: impl FnOnce() -> T) -> T {
        let Some((layer, device)) = self.on_accelerator() else {
            return body();
        };
        let access = layer.access(device);
        let shared = self.share.take().map(drop).is_some();
        let alone = access.write();
        let done = body();
        drop(alone);
        if shared {
            self.share.replace(Some(access.read_arc()));
        }
        done
    }
}

impl Drop for Sharing<'_> {
    fn drop(&mut self) {
        if self.outermost {
            drop(self.lane.share.take());
        }
    }
}
