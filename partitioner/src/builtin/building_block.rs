//! Schedules from a periodic building block.
//!
//! In a V of two chunks a micro-batch makes four passes on each device: the forward of chunk 0 and
//! of chunk 1, the input pass of chunk 1 and of chunk 0. A *building block* gives the unit of time
//! of each of them for micro-batch 0; micro-batch k follows 6k units later (six passes of a unit
//! each, two of them weight passes). The length of the block on a device determines its memory.
//!
//! The block alone wastes time at the start and at the end, so passes are moved forward: in each
//! unit, each device runs the pass with ready input that is first in the block, as long as the
//! block's earlier passes still fit into the block's own peak of memory; weight passes run when
//! nothing else can, or to free memory.
//!
//! *Source*: Qi et al., "Pipeline Parallelism with Controllable Memory",
//! arXiv:2405.15362, sections 3 (building blocks) and 4 (V-shape).

use super::lists::Needs;
use super::vee::{self, Writer};
use super::{Action, Shape};
use crate::ids::DeviceId;

/// Units of time between two micro-batches: six passes.
const PERIOD: usize = 6;

/// Start of the passes of micro-batch 0 on a device: F of chunk 0, F of chunk 1, I of chunk 1, I of
/// chunk 0.
pub(super) type BuildingBlock = [usize; 4];

/// Returns the schedule of the blocks that `block(rank, shift)` returns; `shift` is the least one
/// with which no two passes of a device share a unit.
pub(super) fn lists(
    shape: Shape,
    block: impl Fn(usize, usize) -> BuildingBlock,
) -> Result<Vec<Vec<Action>>, Needs> {
    vee::check(shape)?;
    let blocks = |shift| {
        (0..shape.devices)
            .map(|rank| block(rank, shift))
            .collect::<Vec<_>>()
    };
    let fits = |blocks: &Vec<BuildingBlock>| blocks.iter().all(|&block| slots_differ(block));
    let blocks = (0..PERIOD)
        .map(blocks)
        .find(fits)
        .ok_or("a building block that repeats")?;
    // Moving forwards of a later micro-batch forward as well helps some p and hurts others: try
    // both.
    let strict = Greedy::new(shape, &blocks, true).run();
    let free = Greedy::new(shape, &blocks, false).run();
    Ok(if free.units < strict.units {
        free.lists
    } else {
        strict.lists
    })
}

fn slots_differ(block: BuildingBlock) -> bool {
    let slots = block
        .iter()
        .fold(0u8, |slots, time| slots | 1 << (time % PERIOD));
    slots.count_ones() == 4
}

/// Returns the most chunks in flight on a device that repeats `block`, with a weight pass in every
/// unit that is free for one.
fn peak(block: BuildingBlock) -> usize {
    let (mut held, mut owed, mut peak) = (0, 0, 0);
    for unit in 0..3 * (block[3] + PERIOD) {
        let started = |time: usize| unit >= time && (unit - time).is_multiple_of(PERIOD);
        match block.iter().position(|&time| started(time)) {
            Some(0 | 1) => held += 1,
            Some(_) => owed += 1,
            None if owed > 0 => {
                owed -= 1;
                held -= 1;
            }
            None => {}
        }
        peak = peak.max(held);
    }
    peak
}

struct Greedy<'a> {
    blocks: &'a [BuildingBlock],
    micro_batches: usize,
    /// Most chunks that a device may hold.
    cap: usize,
    /// Whether forwards stay in the order of the block.
    strict: bool,
    devices: Vec<DeviceState>,
    /// End of each pass of the chain (F of stages 0.., then I of stages ..0), by micro-batch.
    ended: Vec<Vec<usize>>,
}

struct DeviceState {
    writer: Writer,
    /// The next micro-batch of each pass.
    next: BuildingBlock,
    /// Number of pending weight passes.
    owed: usize,
}

impl DeviceState {
    /// Chunks held until their input pass.
    fn forwarded(&self) -> usize {
        self.next[0] + self.next[1] - self.next[2] - self.next[3]
    }

    /// Chunks held until their weight pass.
    fn held(&self) -> usize {
        self.forwarded() + self.owed
    }
}

/// Result of the greedy choice.
struct BuiltLists {
    lists: Vec<Vec<Action>>,
    units: usize,
}

/// Action of a device in a unit.
enum Choice {
    Pass(usize),
    Weight,
    Idle,
}

impl<'a> Greedy<'a> {
    fn new(shape: Shape, blocks: &'a [BuildingBlock], strict: bool) -> Self {
        let device = |rank| DeviceState {
            writer: Writer::new(DeviceId(rank), shape),
            next: [0; 4],
            owed: 0,
        };
        Self {
            blocks,
            micro_batches: shape.micro_batches,
            cap: blocks.iter().map(|&block| peak(block)).max().unwrap_or(0),
            strict,
            devices: (0..shape.devices).map(device).collect(),
            ended: vec![Vec::with_capacity(shape.micro_batches); 4 * shape.devices],
        }
    }

    fn run(mut self) -> BuiltLists {
        let mut left = 6 * self.micro_batches * self.devices.len();
        let mut unit = 0;
        while left > 0 {
            let before = left;
            for rank in 0..self.devices.len() {
                left -= usize::from(self.act(rank, unit));
            }
            unit += 1;
            if left == before {
                // Stuck: the check of the schedule will report it. (The device that is first in the
                // block's order can always go on.)
                break;
            }
        }
        let lists = self
            .devices
            .into_iter()
            .map(|device| device.writer.finish())
            .collect();
        BuiltLists { lists, units: unit }
    }

    /// Lets a device act in `unit`; returns whether it did.
    fn act(&mut self, rank: usize, unit: usize) -> bool {
        let choice = self.choose(rank, unit);
        let device = &mut self.devices[rank];
        match choice {
            Choice::Idle => return false,
            Choice::Weight => {
                device.owed -= 1;
                device.writer.weight();
            }
            Choice::Pass(pass) => {
                device.next[pass] += 1;
                match pass {
                    0 | 1 => device.writer.forward(pass),
                    _ => {
                        device.owed += 1;
                        device.writer.input(3 - pass);
                    }
                }
                let chain = self.chain(rank, pass);
                self.ended[chain].push(unit + 1);
            }
        }
        true
    }

    /// Index of a device's pass in the chain of the 4p passes of a micro-batch.
    fn chain(&self, rank: usize, pass: usize) -> usize {
        let p = self.devices.len();
        match pass {
            0 => rank,
            1 => 2 * p - 1 - rank,
            2 => 2 * p + rank,
            _ => 4 * p - 1 - rank,
        }
    }

    fn choose(&self, rank: usize, unit: usize) -> Choice {
        let device = &self.devices[rank];
        let otherwise = if device.owed > 0 {
            Choice::Weight
        } else {
            Choice::Idle
        };
        let order = self.upcoming(rank, device.next);
        for (place, &(_, pass)) in order.iter().enumerate() {
            if !self.has_input(rank, pass, unit) {
                continue;
            }
            if pass >= 2 {
                return Choice::Pass(pass);
            }
            if (self.strict && place > 0) || !self.fits(rank, pass) {
                continue;
            }
            return if device.held() < self.cap {
                Choice::Pass(pass)
            } else {
                otherwise
            };
        }
        otherwise
    }

    /// Returns the next micro-batch of each pass, in the block's order: (time, pass).
    fn upcoming(&self, rank: usize, next: BuildingBlock) -> Vec<(usize, usize)> {
        let mut order: Vec<_> = (0..4)
            .filter(|&pass| next[pass] < self.micro_batches)
            .map(|pass| (self.blocks[rank][pass] + PERIOD * next[pass], pass))
            .collect();
        order.sort_unstable();
        order
    }

    fn has_input(&self, rank: usize, pass: usize, unit: usize) -> bool {
        let micro = self.devices[rank].next[pass];
        let Some(before) = self.chain(rank, pass).checked_sub(1) else {
            return true;
        };
        self.ended[before]
            .get(micro)
            .is_some_and(|&end| end <= unit)
    }

    /// Whether the block's passes before the next forward `pass` still fit if that forward is done
    /// first and weight passes run in time.
    fn fits(&self, rank: usize, pass: usize) -> bool {
        let device = &self.devices[rank];
        let time = self.blocks[rank][pass] + PERIOD * device.next[pass];
        let mut held = device.forwarded() + 1;
        let mut next = device.next;
        while held <= self.cap {
            // Of `pass` itself, only micro-batches after `time` are left.
            let first = self
                .upcoming(rank, next)
                .into_iter()
                .find(|&(_, other)| other != pass);
            match first {
                Some((at, other)) if at < time => {
                    next[other] += 1;
                    // An input pass frees the memory of a forward.
                    if other < 2 {
                        held += 1;
                    } else {
                        held = held.saturating_sub(1);
                    }
                }
                _ => return true,
            }
        }
        false
    }
}
