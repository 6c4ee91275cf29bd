//! Which GPUs are connected with each other, and how they come to be.
//!
//! A *channel* goes from a device to a device: its values come in the order in which the first
//! one makes them, so that none waits for another one of another channel. It is a communicator of
//! two ranks with a stream of its own. All processes make their channels when the first step
//! begins that needs them, in one order for all, so that no two wait for each other's.
//!
//! Who is connected is agreed on by two *cards*, one from each end: which GPU it has, if any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;

use gpipe_partitioner::DeviceId;
use parking_lot::Mutex;

use super::super::{Group, Lost};
use crate::engine::{End, Program};
use crate::tch::{Kind, Tensor};
use crate::torch::streams::{Channel, Interrupted};
use crate::torch::{TorchError, UNIQUE_ID, driver_uuid, nccl_unique_id, nccl_version};

/// From which device, and to which.
pub(super) type Pair = (usize, usize);

/// The tag of cards, below those of votes and of what is told between steps.
const CARDS: u32 = i32::MAX as u32 - 5;

/// One end's: whether it has a GPU for the channel, which, and the word by which they meet.
const CARD: usize = 1 + UUID + UNIQUE_ID;
const UUID: usize = 16;

/// The channels of this process.
pub(super) struct Channels {
    rank: usize,
    rank_of: Vec<usize>,
    /// By device: its GPU, of those here that have one for themselves.
    gpus: Vec<Option<usize>>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// By pair; none where one of them has no GPU, or both have the same.
    channels: BTreeMap<Pair, Option<Arc<Channel>>>,
    aborts: Vec<JoinHandle<()>>,
}

/// The GPU here of a pair that is to be connected, and the word by which both ends meet.
type Met = (usize, [u8; UNIQUE_ID]);

/// What keeps channels from being made.
pub(super) enum Unconnected {
    /// All know.
    Lost(Lost),
    /// NCCL's words.
    Refused(String),
}

impl From<Lost> for Unconnected {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

fn refused((from, to): Pair, error: &impl std::fmt::Display) -> Unconnected {
    Unconnected::Refused(format!("from device {from} to device {to}: {error}"))
}

impl Channels {
    /// For devices of which `gpus` says what they have here. Where any has something, NCCL is
    /// loaded.
    pub(super) fn new(
        rank: usize,
        rank_of: &[usize],
        gpus: &[Option<usize>],
    ) -> Result<Self, TorchError> {
        let here = |device: usize| {
            let gpu = gpus.get(device).copied().flatten();
            gpu.filter(|_| rank_of[device] == rank)
        };
        let alone = |device: usize| {
            let gpu = here(device)?;
            let mut others = (0..rank_of.len()).filter(|other| *other != device);
            // What two devices send would have no order.
            (!others.any(|other| here(other) == Some(gpu))).then_some(gpu)
        };
        let gpus: Vec<_> = (0..rank_of.len()).map(alone).collect();
        if gpus.iter().any(Option::is_some) {
            nccl_version()?;
        }
        Ok(Self {
            rank,
            rank_of: rank_of.to_vec(),
            gpus,
            made: Mutex::default(),
        })
    }

    /// Whether some device here has a GPU for itself.
    pub(super) fn has_gpus(&self) -> bool {
        self.gpus.iter().any(Option::is_some)
    }

    /// The channel of a pair.
    pub(super) fn get(&self, pair: Pair) -> Option<Arc<Channel>> {
        self.made.lock().channels.get(&pair).cloned().flatten()
    }

    /// The channel from a GPU to a device.
    pub(super) fn of_gpu(&self, gpu: usize, to: DeviceId) -> Option<Arc<Channel>> {
        let from = self.gpus.iter().position(|own| *own == Some(gpu))?;
        self.get((from, to.index()))
    }

    /// Makes the channels that a program needs and that are not there yet.
    pub(super) fn connect(
        &self,
        program: &Program,
        group: &Group,
        given_up: &(impl Fn() -> bool + Copy),
    ) -> Result<(), Unconnected> {
        let pairs = self.missing(program);
        let met = self.meet(&pairs, group)?;
        for (pair, card) in pairs.into_iter().zip(met) {
            let channel = card.map(|(gpu, word)| {
                let rank = usize::from(self.rank_of[pair.0] != self.rank);
                Channel::connect(&word, (rank, gpu), given_up)
            });
            let channel = match channel.transpose() {
                Ok(channel) => channel.map(Arc::new),
                // As in `Group`, somebody has failed.
                Err(Interrupted::GivenUp) => return Ok(()),
                Err(Interrupted::Torch(error)) => return Err(refused(pair, &error)),
            };
            self.made.lock().channels.insert(pair, channel);
        }
        Ok(())
    }

    /// The pairs, in the order in which all make them: neighbours do not wait for each other in
    /// a row along the whole pipeline.
    fn missing(&self, program: &Program) -> Vec<Pair> {
        let made = self.made.lock();
        let mut pairs: Vec<Pair> = pairs(program)
            .into_iter()
            .filter(|(from, to)| {
                let (from, to) = (self.rank_of[*from], self.rank_of[*to]);
                from != to && (from == self.rank || to == self.rank)
            })
            .filter(|pair| !made.channels.contains_key(pair))
            .collect();
        pairs.sort_by_key(|(from, to)| (from.min(to) % 2, *from.min(to), *from.max(to), *from));
        pairs
    }

    /// Exchanges cards. *Returns* the GPU and the word of each pair that is to be connected.
    fn meet(&self, pairs: &[Pair], group: &Group) -> Result<Vec<Option<Met>>, Unconnected> {
        let mut under_way = Vec::new();
        for &(from, to) in pairs {
            let sends = self.rank_of[from] == self.rank;
            let (own, other) = if sends { (from, to) } else { (to, from) };
            let card = self.card(own, sends);
            let card = card.map_err(|error| refused((from, to), &error))?;
            let peer = self.rank_of[other];
            let came = group.receive(&[CARD as i64], Kind::Uint8, peer, CARDS)?;
            let sent = group.send(&Tensor::from_slice(&card), peer, CARDS)?;
            under_way.push((own, sends, card, came, sent));
        }
        let mut met = Vec::new();
        for (own, sends, card, came, sent) in under_way {
            let other = Vec::<u8>::try_from(came.wait()?);
            let other = other.map_err(|error| Unconnected::Refused(error.to_string()))?;
            let _ = sent.wait()?;
            let both = card[0] == 1 && other[0] == 1 && card[1..=UUID] != other[1..=UUID];
            let word = if sends { &card[..] } else { &other[..] };
            let mut id = [0; UNIQUE_ID];
            id.copy_from_slice(&word[1 + UUID..]);
            met.push(self.gpus[own].filter(|_| both).map(|gpu| (gpu, id)));
        }
        Ok(met)
    }

    fn card(&self, device: usize, sends: bool) -> Result<[u8; CARD], TorchError> {
        let mut card = [0; CARD];
        if let Some(gpu) = self.gpus[device] {
            card[0] = 1;
            card[1..=UUID].copy_from_slice(&driver_uuid(gpu)?);
            if sends {
                card[1 + UUID..].copy_from_slice(&nccl_unique_id()?);
            }
        }
        Ok(card)
    }

    fn all(&self) -> Vec<(Pair, Arc<Channel>)> {
        let made = self.made.lock();
        let there = |(pair, channel): (&Pair, &Option<Arc<Channel>>)| {
            channel.as_ref().map(|channel| (*pair, Arc::clone(channel)))
        };
        made.channels.iter().filter_map(there).collect()
    }

    /// Waits until this process's GPUs have what was received so far: what counts as arrived must
    /// not be taken away by an abort.
    pub(super) fn finish(&self, given_up: &(impl Fn() -> bool + Copy)) -> Result<(), Unconnected> {
        for (pair, channel) in self.all() {
            match channel.finish(given_up) {
                Ok(()) => {}
                Err(Interrupted::GivenUp) => return Ok(()),
                Err(Interrupted::Torch(error)) => return Err(refused(pair, &error)),
            }
        }
        Ok(())
    }

    /// What has failed in the background; none where nothing has.
    pub(super) fn failed(&self) -> Option<String> {
        self.all().into_iter().find_map(|((from, to), channel)| {
            let error = channel.check().err()?;
            let other = if self.rank_of[from] == self.rank {
                to
            } else {
                from
            };
            let rank = self.rank_of[other];
            Some(format!(
                "its GPU cuda:{} and that of device {other} in rank {rank}: {error}",
                channel.device()
            ))
        })
    }

    /// Frees whoever waits for a transfer, in this process; returns at once.
    pub(super) fn abort(&self) {
        let mut made = self.made.lock();
        let channels: Vec<_> = made.channels.values().flatten().map(Arc::clone).collect();
        for channel in channels {
            let thread = std::thread::Builder::new().name("nccl-abort".to_owned());
            let abort = move || {
                // Who hears of it has failed already.
                let _ = channel.abort();
            };
            // Without a thread it ends when the channel is dropped.
            made.aborts.extend(thread.spawn(abort));
        }
    }

    /// Forgets all channels, once they are at their end.
    pub(super) fn clear(&self) {
        self.abort();
        let made = std::mem::take(&mut *self.made.lock());
        for abort in made.aborts {
            drop(abort.join());
        }
    }
}

/// The pairs of devices between which the values of a program go.
fn pairs(program: &Program) -> BTreeSet<Pair> {
    let device = |end| match end {
        End::Stage(stage) => Some(program.device_of(stage)?.index()),
        End::Caller => None,
    };
    let mut pairs = BTreeSet::new();
    for edge in program.topology().edges() {
        let (Some(from), Some(to)) = (device(edge.from), device(edge.to)) else {
            continue;
        };
        pairs.insert((from, to));
        if edge.gradient && program.is_training() {
            pairs.insert((to, from));
        }
    }
    pairs
}
