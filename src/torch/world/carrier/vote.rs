//! The vote of processes that have all done their part, and the data exchanged in it.
//!
//! In round r a process sends all its data to the rank 2^r further on, and receives as much from
//! the one 2^r before: after log2(size) rounds all have the data of all (Bruck et al. 1997). Of two
//! processes each sends once, and none waits twice for another.
//!
//! Receives begin before the call in which they end, so that a message moves as soon as it is sent.

use std::sync::Arc;

use super::super::{Group, Lost, Transfer};
use tch::{Device, Kind, Tensor};

/// Tags of votes and of other exchanges, above all tags of values.
pub(super) const VOTES: u32 = i32::MAX as u32;
pub(super) const TOLD: u32 = VOTES - 1;

/// Bytes of a first message; longer data has a second one. The first 8 bytes are the length.
const SHORT: usize = 16 << 10;

const BYTES: (Kind, Device) = (Kind::Uint8, Device::Cpu);

/// Reason why an exchange could not finish.
pub(super) enum Stopped {
    Lost(Lost),
    /// Data from this rank cannot be decoded.
    Wrong(usize, String),
}

impl From<Lost> for Stopped {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Returns whether an exchange continues despite this end of the generation.
pub(super) type GoesOn<'a> = &'a dyn Fn(&Lost) -> bool;

/// An exchange of this process, whose receives have begun.
#[derive(Debug)]
pub(super) struct Exchange {
    group: Arc<Group>,
    rank: usize,
    size: usize,
    tag: u32,
    /// Messages by round.
    awaited: Vec<Message>,
}

/// Distance of the receiver in each round.
fn distances(size: usize) -> impl Iterator<Item = usize> {
    let all = std::iter::successors(Some(1), |distance| Some(2 * distance));
    all.take_while(move |distance| *distance < size)
}

impl Exchange {
    /// Begins the receives.
    pub(super) fn begin(
        group: &Arc<Group>,
        (rank, size): (usize, usize),
        tag: u32,
    ) -> Result<Self, Lost> {
        let awaited = distances(size).map(|distance| {
            let from = (rank + size - distance) % size;
            Message::begin(group, from, tag)
        });
        Ok(Self {
            awaited: awaited.collect::<Result<_, _>>()?,
            group: Arc::clone(group),
            rank,
            size,
            tag,
        })
    }

    /// Exchanges data; returns that of each process, in the order of ranks.
    ///
    /// *Complexity*: log2(size) sequential messages, with at most the bytes of all processes
    /// together.
    pub(super) fn finish(self, own: &[u8], goes_on: GoesOn<'_>) -> Result<Vec<Vec<u8>>, Stopped> {
        let mut bundle = Vec::new();
        add(&mut bundle, self.rank, own);
        for (distance, message) in distances(self.size).zip(self.awaited) {
            let to = (self.rank + distance) % self.size;
            let sent = Sent::begin(&self.group, &bundle, to, self.tag)?;
            bundle.extend(message.bytes(goes_on)?);
            // A process that leaves after this has sent all that others need.
            sent.wait(goes_on)?;
        }
        parts(&bundle, self.size)
            .ok_or_else(|| Stopped::Wrong(self.rank, "it is cut off".to_owned()))
    }
}

/// Appends a part: rank, length, data.
fn add(bundle: &mut Vec<u8>, rank: usize, own: &[u8]) {
    bundle.extend((rank as u64).to_le_bytes());
    bundle.extend((own.len() as u64).to_le_bytes());
    bundle.extend(own);
}

/// Splits a bundle into the part of each rank, which may occur several times.
fn parts(mut bundle: &[u8], size: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = vec![None; size];
    while !bundle.is_empty() {
        let (rank, rest) = number(bundle)?;
        let (length, rest) = number(rest)?;
        let (own, rest) = rest.split_at_checked(length)?;
        *all.get_mut(rank)? = Some(own.to_vec());
        bundle = rest;
    }
    all.into_iter().collect()
}

fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    Some((usize::try_from(u64::from_le_bytes(*first)).ok()?, rest))
}

/// Bytes being sent.
pub(super) struct Sent {
    first: Transfer,
    rest: Option<Transfer>,
}

impl Sent {
    pub(super) fn begin(group: &Group, bytes: &[u8], to: usize, tag: u32) -> Result<Self, Lost> {
        let (first, rest) = bytes.split_at(bytes.len().min(SHORT - 8));
        let length = (bytes.len() as u64).to_le_bytes();
        let first = group.send(&Tensor::from_slice(&[&length, first].concat()), to, tag)?;
        let rest = (!rest.is_empty()).then(|| group.send(&Tensor::from_slice(rest), to, tag));
        Ok(Self {
            first,
            rest: rest.transpose()?,
        })
    }

    pub(super) fn wait(self, goes_on: GoesOn<'_>) -> Result<(), Lost> {
        for transfer in std::iter::once(self.first).chain(self.rest) {
            let _ = transfer.wait_past(goes_on)?;
        }
        Ok(())
    }
}

/// Bytes being received; the receive begins before the send, so that the sender does not wait.
#[derive(Debug)]
pub(super) struct Message {
    group: Arc<Group>,
    from: usize,
    tag: u32,
    first: Transfer,
}

impl Message {
    pub(super) fn begin(group: &Arc<Group>, from: usize, tag: u32) -> Result<Self, Lost> {
        let first = group.receive(&[SHORT as i64], Kind::Uint8, from, tag)?;
        Ok(Self {
            group: Arc::clone(group),
            from,
            tag,
            first,
        })
    }

    pub(super) fn bytes(self, goes_on: GoesOn<'_>) -> Result<Vec<u8>, Stopped> {
        let odd = |why: &str| Stopped::Wrong(self.from, why.to_owned());
        let of =
            |tensor: Tensor| Vec::<u8>::try_from(&tensor).map_err(|_| odd("bytes that are none"));
        let first = of(self.first.wait_past(goes_on)?)?;
        let (length, first) = number(&first).ok_or_else(|| odd("no length"))?;
        let mut all = first[..length.min(first.len())].to_vec();
        if length > first.len() {
            let rest = Tensor::f_empty([(length - first.len()) as i64], BYTES);
            let rest = rest.map_err(|error| odd(&error.to_string()))?;
            let rest = self.group.receive_into(rest, self.from, self.tag)?;
            all.extend(of(rest.wait_past(goes_on)?)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_as_they_went() {
        let given: [&[u8]; 3] = [b"one", b"", b"three"];
        let mut bundle = Vec::new();
        for rank in [1, 0, 2, 0] {
            add(&mut bundle, rank, given[rank]);
        }
        assert_eq!(parts(&bundle, 3).unwrap(), given);
        assert_eq!(parts(&bundle, 4), None, "one is missing");
        assert_eq!(parts(&bundle, 2), None, "one too many");
        assert_eq!(parts(&bundle[..bundle.len() - 1], 3), None, "cut off");
    }

    #[test]
    fn every_rank_has_all_after_the_last_round() {
        for size in 1..20 {
            let mut has: Vec<Vec<bool>> = (0..size)
                .map(|rank| (0..size).map(|other| other == rank).collect())
                .collect();
            for distance in distances(size) {
                let before = has.clone();
                for (rank, own) in has.iter_mut().enumerate() {
                    let from = &before[(rank + size - distance) % size];
                    own.iter_mut()
                        .zip(from)
                        .for_each(|(own, from)| *own |= from);
                }
            }
            assert!(has.iter().flatten().all(|there| *there), "{size}");
        }
    }
}
