//! Periodic orders from a building block, which determines a device's memory.
//!
//! A *building block* gives the slot of each pass of micro-batch 0, the forwards and the input gradients
//! of all stages; micro-batch k follows k periods later, of three slots per chunk. The block's length on
//! a device determines how much the device holds. The tried blocks take one to three slots from stage to
//! stage, the same on each leg of the way down and back, and one to six at each turn, such that no two
//! passes of a device share a slot.
//!
//! A block serves as an order here, not as a timetable (module `follow`), since stages differ in time and
//! memory.
//!
//! *Source*: Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv:2405.15362, sections 3 and
//! 4: the built-in v-min and v-half are two of these blocks, with the same memory.

use super::pipeline::Pipeline;

/// Largest number of slots tried from stage to stage, and at a turn.
const STEPS: usize = 3;
const WAITS: usize = 6;
/// More chunks give too many blocks.
pub(super) const MOST_CHUNKS: usize = 2;

/// Slots of micro-batch 0: the forwards of stages 0 to S−1, then the input gradients of S−1 to 0.
pub(super) struct Block {
    slots: Vec<usize>,
    period: usize,
}

impl Block {
    /// Returns all blocks that repeat without a clash.
    ///
    /// # Complexity
    /// Linear in the number of stages.
    pub(super) fn all(pipeline: &Pipeline) -> Vec<Self> {
        let p = pipeline.devices.len();
        let chunks = pipeline.stages.len() / p;
        if chunks > MOST_CHUNKS {
            return Vec::new();
        }
        // Legs and turns alternate.
        let mut own = vec![1; 4 * chunks - 1];
        let mut all = Vec::new();
        loop {
            let legs = Legs::new(&own, p);
            if legs.repeat(pipeline) {
                all.push(Self {
                    slots: (0..2 * chunks * p).map(|place| legs.slot(place)).collect(),
                    period: 3 * chunks,
                });
            }
            let most = |at: usize| if at.is_multiple_of(2) { STEPS } else { WAITS };
            let Some(at) = (0..own.len()).rev().find(|&at| own[at] < most(at)) else {
                return all;
            };
            own[at] += 1;
            own[at + 1..].fill(1);
        }
    }

    /// Returns the slot of a micro-batch at a place in the chain.
    pub(super) fn slot(&self, place: usize, micro: usize) -> usize {
        self.slots[place] + self.period * micro
    }
}

/// Start of each leg of a block, with the slots from stage to stage on it.
struct Legs {
    begins: [(usize, usize); 2 * MOST_CHUNKS],
    devices: usize,
    period: usize,
}

impl Legs {
    fn new(own: &[usize], devices: usize) -> Self {
        let (mut begins, mut slot) = ([(0, 0); 2 * MOST_CHUNKS], 0);
        for (leg, pair) in begins.iter_mut().zip(own.chunks(2)) {
            *leg = (slot, pair[0]);
            slot += pair[0] * (devices - 1) + pair.get(1).copied().unwrap_or_default();
        }
        Self {
            begins,
            devices,
            period: 3 * own.len().div_ceil(4),
        }
    }

    fn slot(&self, place: usize) -> usize {
        let (first, step) = self.begins[place / self.devices];
        first + step * (place % self.devices)
    }

    /// Whether no two passes of a device share a slot. (The passes of a device are those of the device
    /// one period earlier, shifted by a constant number of slots.)
    fn repeat(&self, pipeline: &Pipeline) -> bool {
        pipeline.devices.iter().take(self.period).all(|device| {
            let mut taken = 0_u64;
            passes(&device.stages, pipeline.stages.len()).all(|pass| {
                let bit = 1 << (self.slot(pass) % self.period);
                let is_free = taken & bit == 0;
                taken |= bit;
                is_free
            })
        })
    }
}

/// Returns the places of a device's passes in the chain: the forwards of its stages, then their input
/// gradients.
pub(super) fn passes(own: &[usize], stages: usize) -> impl Iterator<Item = usize> {
    let back = own.iter().rev().map(move |stage| 2 * stages - 1 - stage);
    own.iter().copied().chain(back)
}
