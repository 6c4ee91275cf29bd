//! Identifiers of streams, events and memory.

use std::sync::Arc;

use tch::Device;

use crate::ffi::RawEvent;

/// Place of a tensor's memory.
#[doc(alias = "device")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemorySpace {
    /// The host's memory.
    Host,
    /// The memory of the accelerator with this number.
    Accelerator(usize),
}

/// A stream of an accelerator.
#[doc(alias = "cudaStream_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream {
    pub(crate) device: usize,
    pub(crate) id: i64,
}

/// A point in a stream that other streams and the host can wait for.
#[doc(alias = "cudaEvent_t")]
#[derive(Debug, Clone)]
pub struct Event(pub(super) Arc<RawEvent>);

impl MemorySpace {
    pub(crate) fn device(self) -> Device {
        match self {
            Self::Host => Device::Cpu,
            Self::Accelerator(index) => Device::Cuda(index),
        }
    }

    pub(crate) fn of(device: Device) -> Self {
        match device {
            Device::Cuda(index) => Self::Accelerator(index),
            _ => Self::Host,
        }
    }
}
