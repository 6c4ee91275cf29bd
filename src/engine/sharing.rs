//! Devices that share too few cores, and how their threads are bound to cores.

use gpipe_partitioner::DeviceId;
use std::fmt;
use std::sync::Arc;

/// Devices that share cores which do not suffice for all of them at the same time.
#[derive(Clone, Debug)]
#[doc(alias = "oversubscription")]
pub struct Sharing {
    /// These devices.
    pub devices: Vec<DeviceId>,
    /// How many of them may run an action at the same time; 0 counts as 1. Each of these
    /// has a *core slot*, numbered from 0.
    pub max_concurrent: usize,
    /// How threads are bound to the cores of the slots.
    pub affinity: Arc<dyn Affinity>,
}

/// Binds threads to cores.
///
/// A core slot belongs to one device at a time, so each can have a core of its own. Only
/// speed depends on it: an implementation may do nothing.
#[doc(alias = "sched_setaffinity")]
pub trait Affinity: fmt::Debug + Send + Sync {
    /// The number by which [`pin`](Self::pin) knows the calling thread.
    fn current(&self) -> u64;

    /// Binds `thread` to the core of `slot`, or to no core in particular where that is none,
    /// as from the end of a step on.
    ///
    /// Called, by any thread of the engine, when a device gets another slot than its last
    /// one: it should not block.
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
