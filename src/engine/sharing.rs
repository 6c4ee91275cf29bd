//! Devices that share too few cores, and the binding of their threads to cores.

use gpipe_partitioner::DeviceId;
use std::fmt;
use std::sync::Arc;

/// Devices that share too few cores to run all at the same time.
#[derive(Clone, Debug)]
#[doc(alias = "oversubscription")]
pub struct Sharing {
    /// The devices.
    pub devices: Vec<DeviceId>,
    /// Number of devices that may run an action at the same time; 0 counts as 1. Each of them holds
    /// a *core slot*, numbered from 0.
    pub max_concurrent: usize,
    /// Binds threads to the cores of the slots.
    pub affinity: Arc<dyn Affinity>,
}

/// Binds threads to cores.
///
/// A core slot belongs to one device at a time, so each running device can have a core of its own.
/// Binding affects only speed: an implementation may do nothing.
#[doc(alias = "sched_setaffinity")]
pub trait Affinity: fmt::Debug + Send + Sync {
    /// Number of the calling thread, for [`pin`](Self::pin).
    fn current(&self) -> u64;

    /// Binds `thread` to the core of `slot`, or to no particular core for `None`, as at the end of
    /// a step.
    ///
    /// Called, by any thread of the engine, when a device gets a slot other than its last one: it
    /// should not block.
    fn pin(&self, thread: u64, slot: Option<usize>);
}

/// Leaves all threads to the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpinned;

impl Affinity for Unpinned {
    fn current(&self) -> u64 {
        0
    }

    fn pin(&self, _thread: u64, _slot: Option<usize>) {}
}
