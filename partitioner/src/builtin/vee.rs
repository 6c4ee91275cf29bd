//! Common parts of the schedules with placement V: two chunks per device, the first going down the
//! devices, the second coming back up.

use super::lists::Needs;
use super::{Action, ActionKind, Placement, Shape};
use crate::ids::DeviceId;

/// List of one device under construction: each chunk's passes in increasing micro-batch order,
/// weight passes in the order of the input passes. Passes beyond the last micro-batch are left out,
/// so a pattern made for many micro-batches also serves few.
pub(super) struct Writer {
    stages: [usize; 2],
    micro_batches: usize,
    list: Vec<Action>,
    pairs: Vec<usize>,
    forwards: [usize; 2],
    backwards: [usize; 2],
    /// Chunk and micro-batch of input passes whose weight pass is pending.
    owed: std::collections::VecDeque<(usize, usize)>,
}

impl Writer {
    pub(super) fn new(device: DeviceId, shape: Shape) -> Self {
        Self {
            stages: [0, 1].map(|chunk| Placement::Vee.stage(chunk, device, shape.devices).index()),
            micro_batches: shape.micro_batches,
            list: Vec::with_capacity(6 * shape.micro_batches),
            pairs: Vec::new(),
            forwards: [0; 2],
            backwards: [0; 2],
            owed: std::collections::VecDeque::new(),
        }
    }

    fn push(&mut self, chunk: usize, kind: ActionKind, micro: usize) {
        if micro < self.micro_batches {
            self.list.push(Action::new(self.stages[chunk], kind, micro));
        }
    }

    /// Adds the next forward of `chunk`.
    pub(super) fn forward(&mut self, chunk: usize) {
        self.push(chunk, ActionKind::Forward, self.forwards[chunk]);
        self.forwards[chunk] += 1;
    }

    /// Adds the next joint backward of `chunk`.
    pub(super) fn backward(&mut self, chunk: usize) {
        self.push(chunk, ActionKind::Backward, self.backwards[chunk]);
        self.backwards[chunk] += 1;
    }

    /// Adds the next forward of `chunk` and the next joint backward of the other chunk as an
    /// overlapped pair, if both exist.
    pub(super) fn pair(&mut self, chunk: usize) {
        let place = self.list.len();
        self.forward(chunk);
        self.backward(1 - chunk);
        if self.list.len() == place + 2 {
            self.pairs.push(place);
        }
    }

    /// Adds the next input pass of `chunk`; its weight pass becomes pending.
    pub(super) fn input(&mut self, chunk: usize) {
        let micro = self.backwards[chunk];
        self.push(chunk, ActionKind::BackwardInput, micro);
        self.owed.push_back((chunk, micro));
        self.backwards[chunk] += 1;
    }

    /// Adds the oldest pending weight pass, if any.
    pub(super) fn weight(&mut self) {
        if let Some((chunk, micro)) = self.owed.pop_front() {
            self.push(chunk, ActionKind::BackwardWeight, micro);
        }
    }

    /// Number of forwards of `chunk` so far.
    pub(super) fn forwards(&self, chunk: usize) -> usize {
        self.forwards[chunk]
    }

    /// Returns the list, with all pending weight passes added.
    pub(super) fn finish(self) -> Vec<Action> {
        self.finish_with_pairs().0
    }

    /// Same as `finish`, with the places of the overlapped pairs.
    pub(super) fn finish_with_pairs(mut self) -> (Vec<Action>, Vec<usize>) {
        while !self.owed.is_empty() {
            self.weight();
        }
        (self.list, self.pairs)
    }
}

/// Largest p (p + m) of a schedule in a V.
const MAX_VEE: usize = 1 << 20;

/// Checks that a V can have this shape.
pub(super) fn check(shape: Shape) -> Result<(), Needs> {
    let (p, m) = (shape.devices, shape.micro_batches);
    if p.saturating_mul(p + m) > MAX_VEE {
        return Err(
            "devices times (devices plus micro-batches) of at most 1048576: making it takes \
             time quadratic in the devices",
        );
    }
    if shape.chunks != 2 {
        return Err("two chunks per device");
    }
    Ok(())
}

/// Returns the result of `list` for each device, or the shape's requirement.
pub(super) fn lists<T>(shape: Shape, list: impl Fn(usize, Writer) -> T) -> Result<Vec<T>, Needs> {
    check(shape)?;
    Ok((0..shape.devices)
        .map(|rank| list(rank, Writer::new(DeviceId(rank), shape)))
        .collect())
}
