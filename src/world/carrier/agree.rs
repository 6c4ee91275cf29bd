//! The vote of processes that have all done their part, and what each of them tells in it.
//!
//! In round r a process sends all that it has to the rank 2^r further on, and gets as much from
//! the one 2^r before: after log2(size) rounds all have what each of them gave (Bruck et al. 1997).
//! Of two processes each sends once, and nobody waits for anybody twice.
//!
//! The receives are begun before the call begins in which they end, so that a message goes as soon
//! as it is there.

use std::sync::Arc;

use super::super::{Group, Lost, Transfer};
use super::arrivals::bytes_of;
use crate::tch::{Device, Kind, Tensor};

/// Tags of votes, and of what is exchanged besides, above all those of values.
pub(super) const VOTES: u32 = i32::MAX as u32;
pub(super) const TOLD: u32 = VOTES - 1;

/// The bytes of a first message; longer ones have a second. The first 8 say how many there are.
const SHORT: usize = 16 << 10;

const BYTES: (Kind, Device) = (Kind::Uint8, Device::Cpu);

/// What keeps an exchange from its end.
pub(super) enum Stopped {
    Lost(Lost),
    /// What this rank has sent cannot be read.
    Wrong(usize, String),
}

impl From<Lost> for Stopped {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Whether an end of the generation does not end the exchange.
pub(super) type GoesOn<'a> = &'a dyn Fn(&Lost) -> bool;

/// An exchange in which this process takes part, and whose receives have begun.
#[derive(Debug)]
pub(super) struct Exchange {
    group: Arc<Group>,
    rank: usize,
    size: usize,
    tag: u32,
    /// By round.
    awaited: Vec<Message>,
}

/// How far a message goes in each round.
fn distances(size: usize) -> impl Iterator<Item = usize> {
    let all = std::iter::successors(Some(1), |distance| Some(2 * distance));
    all.take_while(move |distance| *distance < size)
}

impl Exchange {
    /// Begins to receive.
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

    /// What each process gives, in the order of ranks.
    ///
    /// *Complexity*: log2(size) messages one after another, of all bytes together at most.
    pub(super) fn finish(self, own: &[u8], goes_on: GoesOn<'_>) -> Result<Vec<Vec<u8>>, Stopped> {
        let mut bundle = Vec::new();
        add(&mut bundle, self.rank, own);
        for (distance, message) in distances(self.size).zip(self.awaited) {
            let to = (self.rank + distance) % self.size;
            let sent = Sent::begin(&self.group, &bundle, to, self.tag)?;
            bundle.extend(message.bytes(goes_on)?);
            // Whoever leaves has told all that others need.
            sent.wait(goes_on)?;
        }
        parts(&bundle, self.size)
            .ok_or_else(|| Stopped::Wrong(self.rank, "it is cut off".to_owned()))
    }
}

/// One more part: whose, how long, what.
fn add(bundle: &mut Vec<u8>, rank: usize, own: &[u8]) {
    bundle.extend((rank as u64).to_le_bytes());
    bundle.extend((own.len() as u64).to_le_bytes());
    bundle.extend(own);
}

/// The part of each rank, which may be there several times.
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

/// Bytes on their way.
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

/// Bytes that are being received, which is begun before they are sent: nobody waits for that.
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
        let of = |tensor: Tensor| bytes_of(&tensor).map_err(|_| odd("bytes that are none"));
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
