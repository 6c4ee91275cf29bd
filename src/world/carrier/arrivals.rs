//! What a device elsewhere sends in a step, one value after another.
//!
//! gloo moves a message once its receiver has begun to receive it, and how long a value's
//! memories are stands in its header. So each value would cost a journey of the header, one of
//! the receiver's readiness and one of the memories. Most values look as they did in the step
//! before: the receiver begins to receive the next few of them as if they did. The sender knows
//! what the receiver expects; where it has something else, it sends empty messages for that, and
//! then what it has.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::super::{Group, Lost, Transfer};
use super::headers::Headers;
use crate::engine::Address;
use crate::tch::{Device, Kind, Tensor};
use crate::torch::Values;
use crate::torch::wire::{FIRST, Incoming};

/// Values whose memories are received before their headers are there. More would take memory
/// for values that nobody needs yet.
const AHEAD: usize = 2;

/// What keeps a value from arriving.
pub(super) enum Stopped {
    /// All know.
    Lost,
    /// It makes no sense.
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
    pub(super) to: Address,
    /// The tag of its header; its memories have the next one.
    pub(super) tag: u32,
    pub(super) header: Transfer,
}

/// The values of a step from one device, in the order in which they are sent.
pub(super) struct Arrivals {
    group: Arc<Group>,
    from: usize,
    /// No value has more bytes.
    limit: u64,
    headers: Arc<Headers>,
    rest: std::vec::IntoIter<Expected>,
    ahead: VecDeque<(Expected, Option<Guess>)>,
}

/// Memories that are received before the header is there.
struct Guess {
    incoming: Incoming,
    transfers: Vec<Transfer>,
}

impl Arrivals {
    pub(super) fn new(
        (group, from): (&Arc<Group>, usize),
        all: Vec<Expected>,
        limit: u64,
        headers: Arc<Headers>,
    ) -> Self {
        Self {
            group: Arc::clone(group),
            from,
            limit,
            headers,
            rest: all.into_iter(),
            ahead: VecDeque::new(),
        }
    }

    /// Waits for the next value; none after the last.
    pub(super) fn next(&mut self) -> Result<Option<(Address, Values)>, Stopped> {
        self.look_ahead()?;
        let Some((expected, guess)) = self.ahead.pop_front() else {
            return Ok(None);
        };
        let to = expected.to;
        let values = self.receive(expected, guess)?;
        Ok(Some((to, values)))
    }

    /// Begins to receive the next values as they were the last time.
    fn look_ahead(&mut self) -> Result<(), Stopped> {
        while self.ahead.len() < AHEAD {
            let Some(next) = self.rest.next() else { break };
            let guess = self.headers.of(self.from, next.tag);
            let guess = guess.map(|header| self.begin(&header, next.tag));
            self.ahead.push_back((next, guess.transpose()?));
        }
        Ok(())
    }

    /// Begins to receive what this header speaks of.
    fn begin(&self, header: &[u8], tag: u32) -> Result<Guess, Stopped> {
        let incoming = Incoming::new(header, self.limit).map_err(wrong)?;
        let into = |buffer: &Tensor| self.into(buffer.shallow_clone(), tag);
        let transfers = incoming.buffers().map(into).collect::<Result<_, _>>()?;
        Ok(Guess {
            incoming,
            transfers,
        })
    }

    fn into(&self, buffer: Tensor, tag: u32) -> Result<Transfer, Lost> {
        self.group.receive_into(buffer, self.from, tag + 1)
    }

    fn receive(&self, expected: Expected, guess: Option<Guess>) -> Result<Values, Stopped> {
        let Expected { tag, header, .. } = expected;
        let mut header = bytes_of(&header.wait()?)?;
        let as_before = self.headers.of(self.from, tag).as_ref() == Some(&header);
        let Guess {
            incoming,
            transfers,
        } = match guess {
            Some(guess) if as_before => guess,
            guess => {
                // Empty messages.
                wait(guess.map_or(Vec::new(), |guess| guess.transfers))?;
                let length = Incoming::header_bytes(&header).map_err(wrong)?;
                if length > FIRST {
                    header.extend(self.bytes(length - FIRST, tag)?);
                }
                self.begin(&header, tag)?
            }
        };
        wait(transfers)?;
        self.headers.remember(self.from, tag, header);
        incoming.values().map_err(wrong)
    }

    /// Receives so many bytes.
    fn bytes(&self, count: usize, tag: u32) -> Result<Vec<u8>, Stopped> {
        let buffer = Tensor::f_empty([count as i64], (Kind::Uint8, Device::Cpu));
        bytes_of(&self.into(buffer.map_err(wrong)?, tag)?.wait()?)
    }
}

fn wait(transfers: Vec<Transfer>) -> Result<(), Lost> {
    for transfer in transfers {
        let _ = transfer.wait()?;
    }
    Ok(())
}

pub(super) fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, Stopped> {
    Vec::<u8>::try_from(tensor).map_err(wrong)
}
