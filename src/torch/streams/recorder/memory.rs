//! Memory that is currently allocated.

use tch::Tensor;

use super::log_entry::Buffer;
use super::{Recorder, State, address};
use crate::streams::ids::MemorySpace;

/// A piece of memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub(super) end: usize,
    pub(super) buffer: Buffer,
    /// The accelerator that it would be on.
    pub(super) device: Option<usize>,
}

impl Recorder {
    /// The memory space that a tensor would be in.
    pub(in crate::streams) fn space_of(&self, tensor: &Tensor) -> MemorySpace {
        let live = self.log.state.lock().live(address(tensor));
        let device = live.and_then(|live| live.device);
        device.map_or(MemorySpace::Host, MemorySpace::Accelerator)
    }
}

impl State {
    pub(super) fn buffers_at(&self, addresses: &[usize]) -> Vec<Buffer> {
        let found = addresses.iter().map(|address| self.buffer(*address));
        found.flatten().collect()
    }

    /// The block of memory at this address.
    pub(super) fn buffer(&self, address: usize) -> Option<Buffer> {
        self.live(address).map(|live| live.buffer)
    }

    fn live(&self, address: usize) -> Option<Live> {
        let (_, live) = self.live.range(..=address).next_back()?;
        (address < live.end).then_some(*live)
    }
}
