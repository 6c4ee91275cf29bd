//! Receiving the values that a remote device sends in a step, one after another.
//!
//! gloo moves a message once its receiver has begun to receive it, and a value's header says how
//! long its memories are. So each value would cost one trip for the header, one for the receiver's
//! readiness and one for the memories. Most values look as they did in the previous step: the
//! receiver begins to receive the next few on that assumption. The sender knows the assumption; if
//! it is wrong, it sends empty messages for it, and then the actual ones.

use std::collections::VecDeque;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::super::{Group, Lost, Transfer, World};
use super::channels::Channels;
use super::receive_ahead::{Headers, MARK, Posted};
use super::shared::{Shared, is_over};
use super::{Order, Parcel, Payload};
use crate::caught;
use crate::streams::{Channel, InTransit};
use crate::wire::{FIRST, Header, Incoming};
use gpipe_engine::Address;
use tch::{Device, Kind, Tensor};

/// Number of values whose memories are received before their headers arrive: at least the minimum,
/// and more as long as their total stays below `AHEAD_BYTES`. That must cover what a link carries
/// in a round trip, or the link idles: 20 ms at 10 Gbit/s are 25 MB. More would take memory for
/// values that are not needed yet.
const AHEAD: RangeInclusive<usize> = 2..=32;
const AHEAD_BYTES: usize = 32 << 20;

/// Reason why a value does not arrive.
pub(super) enum Stopped {
    /// The generation ended, as all know.
    Lost,
    /// The value is malformed.
    Wrong(String),
}

impl From<Lost> for Stopped {
    fn from(_: Lost) -> Self {
        Self::Lost
    }
}

fn wrong(error: impl fmt::Display) -> Stopped {
    Stopped::Wrong(error.to_string())
}

/// A value that is to arrive.
pub(super) struct Expected {
    pub(super) place: Place,
    pub(super) header: Transfer,
}

/// Destination of a value.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) to: Address,
    /// The tag of its header; its memories have the next one.
    pub(super) tag: u32,
}

/// Values of a step from one device, in the order in which they are sent.
pub(super) struct Arrivals {
    world: Arc<World>,
    generation: u64,
    /// Mark of the step's call.
    mark: u64,
    channels: Arc<Channels>,
    group: Arc<Group>,
    from: usize,
    /// The sending device.
    device: usize,
    /// Most bytes of a value.
    limit: u64,
    headers: Arc<Headers>,
    posted: Arc<Posted>,
    tags: Vec<u32>,
    rest: std::vec::IntoIter<Expected>,
    ahead: VecDeque<(Expected, Option<Guess>)>,
    /// Bytes being received ahead.
    bytes_ahead: usize,
}

/// Memories received before their header.
struct Guess {
    incoming: Incoming,
    /// Channel by which some of them arrive.
    channel: Option<Arc<Channel>>,
    transfers: Vec<Transfer>,
}

impl Guess {
    fn bytes(&self) -> usize {
        self.transfers.iter().map(Transfer::bytes).sum()
    }
}

impl Arrivals {
    pub(super) fn new<V: Payload>(
        shared: &Shared<V>,
        (group, from, device): (&Arc<Group>, usize, usize),
        all: Vec<Expected>,
    ) -> Self {
        Self {
            world: Arc::clone(&shared.world),
            generation: shared.world.generation(),
            mark: shared.mark(),
            channels: Arc::clone(&shared.channels),
            group: Arc::clone(group),
            from,
            device,
            limit: shared.limit,
            headers: shared.received(),
            posted: shared.posted(),
            tags: all.iter().map(|expected| expected.place.tag).collect(),
            rest: all.into_iter(),
            ahead: VecDeque::new(),
            bytes_ahead: 0,
        }
    }

    /// Returns the generation of the values.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Waits for the next value; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<(Address, Parcel)>, Stopped> {
        self.look_ahead()?;
        let Some((expected, guess)) = self.ahead.pop_front() else {
            return Ok(None);
        };
        self.bytes_ahead -= guess.as_ref().map_or(0, Guess::bytes);
        let to = expected.place.to;
        let parcel = self.receive(expected, guess)?;
        Ok(Some((to, parcel)))
    }

    /// Begins the receives of the next step, once all values of this one have arrived.
    pub(super) fn post_again(&self) {
        // A failure is reported to those waiting for the next step.
        let _ = self.posted.again(&self.group, self.from, &self.tags);
    }

    /// Begins to receive the next values, assuming that they look as in the previous step.
    fn look_ahead(&mut self) -> Result<(), Stopped> {
        while self.has_room_ahead() {
            let Some(next) = self.rest.next() else { break };
            let before = self.headers.of(self.from, next.place.tag);
            let before = before.map(|header| self.read(&header)).transpose()?;
            // A GPU waiting for a value that may be long in coming has less capacity for other work.
            let guess = before.filter(|header| header.received_ahead() > 0);
            let guess = guess.map(|header| self.begin(header, next.place));
            let guess = guess.transpose()?;
            self.bytes_ahead += guess.as_ref().map_or(0, Guess::bytes);
            self.ahead.push_back((next, guess));
        }
        Ok(())
    }

    fn has_room_ahead(&self) -> bool {
        let values = self.ahead.len();
        values < *AHEAD.start() || (values < *AHEAD.end() && self.bytes_ahead < AHEAD_BYTES)
    }

    fn read(&self, header: &[u8]) -> Result<Header, Stopped> {
        Header::read(header, self.limit).map_err(wrong)
    }

    /// Begins to receive the memories that this header describes.
    fn begin(&self, header: Header, place: Place) -> Result<Guess, Stopped> {
        let channel = if header.is_by_gpu() {
            self.channels.get((self.device, place.to.device.index()))
        } else {
            None
        };
        let inline = header.is_inline();
        let mut incoming = match &channel {
            Some(channel) => self.by_channel(header, channel)?,
            None => Incoming::new(header, None).map_err(wrong)?,
        };
        let messages = if inline {
            Vec::new()
        } else {
            incoming.messages().map_err(wrong)?
        };
        let transfers = messages.into_iter();
        let transfers = transfers.map(|message| self.into(message, place.tag));
        Ok(Guess {
            transfers: transfers.collect::<Result<_, _>>()?,
            incoming,
            channel,
        })
    }

    fn by_channel(&self, header: Header, channel: &Channel) -> Result<Incoming, Stopped> {
        let room = || {
            let incoming = Incoming::new(header, Some(channel.device()))?;
            let memories = incoming.gpu_buffers().map(Tensor::shallow_clone).collect();
            Ok((incoming, memories))
        };
        let begun = channel.receive(room, || is_over(&self.world, self.generation));
        begun.map_err(|error| self.stopped(&error))
    }

    /// Converts an error of a channel, which is expected if the generation ended.
    fn stopped(&self, error: &anyhow::Error) -> Stopped {
        if is_over(&self.world, self.generation) {
            Stopped::Lost
        } else {
            wrong(error)
        }
    }

    fn into(&self, buffer: Tensor, tag: u32) -> Result<Transfer, Lost> {
        self.group.receive_into(buffer, self.from, tag + 1)
    }

    fn receive(&self, expected: Expected, guess: Option<Guess>) -> Result<Parcel, Stopped> {
        let Expected { place, header } = expected;
        let tag = place.tag;
        let message = header.wait()?;
        let first = bytes_of(&message)?;
        let (mark, header) = first.split_at(MARK);
        if mark != self.mark.to_le_bytes() {
            // The two calls never end. Their names are compared soon, and no connection may be
            // closed before.
            let _ = self.world.watch.wait_for_end_of(self.generation);
            return Err(Stopped::Lost);
        }
        let length = Header::length(header).map_err(wrong)?;
        let mut header = header[..length.min(FIRST)].to_vec();
        let as_before = self.headers.of(self.from, tag).as_ref() == Some(&header);
        let Guess {
            incoming,
            channel,
            transfers,
        } = match guess {
            Some(guess) if as_before => guess,
            guess => {
                // The sender fills the wrong guess with empty messages.
                wait(guess.map_or(Vec::new(), |guess| guess.transfers))?;
                if length > FIRST {
                    header.extend(self.bytes(length - FIRST, tag)?);
                }
                let read = self.read(&header)?;
                let inline = read.is_inline();
                let begun = self.begin(read, place)?;
                if inline {
                    let filled = begun.incoming.fill(&message, MARK + length);
                    filled.map_err(wrong)?;
                }
                begun
            }
        };
        wait(transfers)?;
        self.headers.remember(self.from, tag, header);
        let Some(channel) = channel else {
            let values = incoming.values().map_err(wrong)?;
            return Ok(Parcel::on_host(values));
        };
        let received: anyhow::Result<InTransit> = channel.received(|| Ok(incoming.values()?));
        received.map(Parcel).map_err(|error| self.stopped(&error))
    }

    /// Receives `count` bytes.
    fn bytes(&self, count: usize, tag: u32) -> Result<Vec<u8>, Stopped> {
        let buffer = Tensor::f_empty([count as i64], (Kind::Uint8, Device::Cpu));
        bytes_of(&self.into(buffer.map_err(wrong)?, tag)?.wait()?)
    }
}

impl<V: Payload> Shared<V> {
    /// Receives the values of an order, one after another.
    pub(super) fn receive(&self, order: Order) {
        let Order {
            step,
            from,
            mut arrivals,
            piece: _piece,
        } = order;
        loop {
            // A thread that died would leave the others waiting.
            let delivered = caught(|| {
                let delivered = arrivals.next().and_then(|next| {
                    let Some((to, parcel)) = next else {
                        return Ok(false);
                    };
                    let value = V::from_parcel(parcel).map_err(wrong)?;
                    let delivered = self.deliver(step, to, value).ok_or(Stopped::Lost)?;
                    delivered.map(|()| true).map_err(wrong)
                });
                Ok(delivered)
            });
            let delivered =
                delivered.unwrap_or_else(|error| Err(Stopped::Wrong(error.to_string())));
            match delivered {
                Ok(true) => {}
                Ok(false) => return arrivals.post_again(),
                Err(Stopped::Lost) => return,
                Err(Stopped::Wrong(why)) => {
                    let why = format!("what rank {from} has sent: {why}");
                    return self.fail_in(arrivals.generation(), &why);
                }
            }
        }
    }
}

fn wait(transfers: Vec<Transfer>) -> Result<(), Lost> {
    for transfer in transfers {
        let _ = transfer.wait()?;
    }
    Ok(())
}

fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, Stopped> {
    Vec::<u8>::try_from(tensor).map_err(wrong)
}
