//! Direct connections between GPUs of different processes, and how they are made.
//!
//! A *channel* goes from one device to another: its values arrive in the order in which the first
//! one makes them, and never wait for those of another channel. It is a communicator of two ranks
//! with its own stream. All processes make their channels at the first step that needs them, in one
//! common order, so that no two wait for each other.
//!
//! Each end sends a *card* with its GPU, if it has one; the two cards decide whether a channel is
//! made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;

use gpipe_partitioner::DeviceId;
use parking_lot::Mutex;

use super::super::{Group, Lost};
use crate::streams::{Channel, Interrupted};
use crate::{TorchError, UNIQUE_ID, driver_uuid, nccl_unique_id, nccl_version};
use gpipe_engine::{End, Program};
use tch::{Kind, Tensor};

/// Sending and receiving device.
pub(super) type Pair = (usize, usize);

/// The tag of cards, below those of votes and of exchanges between steps.
const CARDS: u32 = i32::MAX as u32 - 5;

/// Bytes of a card: whether the end has a GPU for the channel, the GPU's UUID, and the NCCL id of
/// the meeting.
const CARD: usize = 1 + UUID + UNIQUE_ID;
const UUID: usize = 16;

/// The channels of this process.
pub(super) struct Channels {
    rank: usize,
    rank_of: Vec<usize>,
    /// By device: its GPU, if it is local and no other device shares it.
    gpus: Vec<Option<usize>>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// Channel of each pair; `None` if one end has no GPU, or both have the same.
    channels: BTreeMap<Pair, Option<Arc<Channel>>>,
    aborts: Vec<JoinHandle<()>>,
}

/// The local GPU of a pair to connect, and the NCCL id of the meeting.
type Met = (usize, [u8; UNIQUE_ID]);

/// Reason why channels could not be made.
pub(super) enum Unconnected {
    /// The generation ended, as all know.
    Lost(Lost),
    /// NCCL's error message.
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
    /// Prepares channels for the devices with a local GPU in `gpus`. Loads NCCL if there is any.
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
            // Two devices on one GPU would send in no defined order.
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

    /// Returns whether a local device has a GPU of its own.
    pub(super) fn has_gpus(&self) -> bool {
        self.gpus.iter().any(Option::is_some)
    }

    /// Returns the channel of a pair.
    pub(super) fn get(&self, pair: Pair) -> Option<Arc<Channel>> {
        self.made.lock().channels.get(&pair).cloned().flatten()
    }

    /// Returns the channel from a GPU to a device.
    pub(super) fn of_gpu(&self, gpu: usize, to: DeviceId) -> Option<Arc<Channel>> {
        let from = self.gpus.iter().position(|own| *own == Some(gpu))?;
        self.get((from, to.index()))
    }

    /// Makes the missing channels that a program needs.
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
                // As in `Group`, another process has failed.
                Err(Interrupted::GivenUp) => return Ok(()),
                Err(Interrupted::Torch(error)) => return Err(refused(pair, &error)),
            };
            self.made.lock().channels.insert(pair, channel);
        }
        Ok(())
    }

    /// Returns the missing pairs, in the order in which all processes make them: neighbours do not
    /// wait in a chain along the whole pipeline.
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

    /// Exchanges cards. *Returns* GPU and NCCL id of each pair to connect.
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

    /// Waits until this process's GPUs have received everything so far: arrived values must not be
    /// lost to an abort.
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

    /// Returns an error that occurred in the background; `None` if there is none.
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

    /// Frees all threads of this process that wait for a transfer; returns at once.
    pub(super) fn abort(&self) {
        let mut made = self.made.lock();
        let channels: Vec<_> = made.channels.values().flatten().map(Arc::clone).collect();
        for channel in channels {
            let thread = std::thread::Builder::new().name("nccl-abort".to_owned());
            let abort = move || {
                // Those who would see this error have failed already.
                let _ = channel.abort();
            };
            // Without a thread it ends when the channel is dropped.
            made.aborts.extend(thread.spawn(abort));
        }
    }

    /// Drops all channels, once their aborts are done.
    pub(super) fn clear(&self) {
        self.abort();
        let made = std::mem::take(&mut *self.made.lock());
        for abort in made.aborts {
            drop(abort.join());
        }
    }
}

/// Returns the pairs of devices between which a program's values travel.
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
