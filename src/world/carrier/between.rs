//! What processes tell each other between steps: bytes from all to all, values from one to
//! another.

use std::sync::Arc;

use super::arrivals::bytes_of;
use super::{Group, Lost, Payload, Transfer, World, WorldCarrier};
use crate::tch::{Device, Kind, Tensor};
use crate::torch::Values;
use crate::torch::wire::{Incoming, Outgoing};

/// Tags, below those of votes and above those of a step's values.
const UP: u32 = i32::MAX as u32 - 2;
const DOWN: u32 = UP - 1;
const VALUES: u32 = UP - 2;

/// The bytes of a first message; longer ones have a second. The first 8 say how many there are.
const SHORT: usize = 16 << 10;

const BYTES: (Kind, Device) = (Kind::Uint8, Device::Cpu);

impl<V: Payload> WorldCarrier<V> {
    /// What each process gives, in the order of ranks; all of them call this. It is no vote: a
    /// process that has all does not know that the others have.
    ///
    /// *Complexity*: 2 log2(size) messages one after another, of all bytes together at most.
    ///
    /// # Errors
    /// A process is lost, or has failed before it came here.
    #[doc(alias = "all_gather")]
    pub fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        let (rank, size) = (self.world().rank(), self.world().size());
        gather(&self.group(), (rank, size), own).map_err(|stopped| self.wrong(stopped))
    }

    /// Sends values to one process, and waits until they are there. That one
    /// [takes](Self::take) them.
    ///
    /// # Errors
    /// They cannot be sent; or a process is lost, or has failed.
    pub(crate) fn hand(&self, values: &Values, to: usize) -> anyhow::Result<()> {
        let outgoing = Outgoing::new(values, None)?;
        let group = self.group();
        send_bytes(&group, outgoing.header(), to, VALUES)?;
        for memory in outgoing.memories() {
            let _ = group.send(memory, to, VALUES)?.wait()?;
        }
        Ok(())
    }

    /// Waits for values of one process.
    ///
    /// # Errors
    /// A process is lost, or has failed.
    pub(crate) fn take(&self, from: usize) -> Result<Values, Lost> {
        self.try_take(from).map_err(|stopped| self.wrong(stopped))
    }

    fn try_take(&self, from: usize) -> Result<Values, Stopped> {
        let group = self.group();
        let header = Message::begin(&group, from, VALUES)?.bytes()?;
        let odd = |why: String| Stopped::Wrong(from, why);
        let incoming =
            Incoming::new(&header, self.shared.limit, None).map_err(|why| odd(why.to_string()))?;
        for buffer in incoming.buffers() {
            let into = group.receive_into(buffer.shallow_clone(), from, VALUES)?;
            let _ = into.wait()?;
        }
        incoming.values().map_err(|why| odd(why.to_string()))
    }

    /// Sends a number to one process, which [takes](Self::take_number) it.
    pub(crate) fn hand_number(&self, number: f64, to: usize) -> Result<(), Lost> {
        send_bytes(&self.group(), &number.to_le_bytes(), to, VALUES)
    }

    /// Waits for a number of one process.
    pub(crate) fn take_number(&self, from: usize) -> Result<f64, Lost> {
        let taken = Message::begin(&self.group(), from, VALUES).and_then(Message::bytes);
        let bytes = taken.map_err(|stopped| self.wrong(stopped))?;
        let number = bytes.try_into().map(f64::from_le_bytes);
        number.map_err(|_| self.wrong(Stopped::Wrong(from, "no number".to_owned())))
    }

    /// Who has sent what cannot be read has failed in a way that nobody goes on from.
    fn wrong(&self, stopped: Stopped) -> Lost {
        match stopped {
            Stopped::Lost(lost) => lost,
            Stopped::Wrong(from, why) => {
                let why = format!("what rank {from} has sent between steps: {why}");
                self.world().lose(&why)
            }
        }
    }
}

/// The same among all processes of a world, before there is a carrier.
pub(crate) fn gather_once(world: &World, own: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
    let group = Arc::new(world.group()?);
    let all = gather(&group, (world.rank(), world.size()), own);
    world.retire(group);
    all.map_err(|stopped| match stopped {
        Stopped::Lost(lost) => lost,
        Stopped::Wrong(from, why) => world.lose(&format!(
            "what rank {from} has sent where processes meet: {why}"
        )),
    })
}

enum Stopped {
    Lost(Lost),
    /// What this rank has sent cannot be read.
    Wrong(usize, String),
}

impl From<Lost> for Stopped {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Up a binary tree to rank 0, each process with what those below it have given, and all of it
/// down again.
fn gather(
    group: &Group,
    (rank, size): (usize, usize),
    own: &[u8],
) -> Result<Vec<Vec<u8>>, Stopped> {
    let children = [2 * rank + 1, 2 * rank + 2];
    let children = || children.into_iter().filter(|child| *child < size);
    let parent = rank.checked_sub(1).map(|before| before / 2);
    let below: Vec<Message> = children()
        .map(|child| Message::begin(group, child, UP))
        .collect::<Result<_, _>>()?;
    let down = parent.map(|parent| Message::begin(group, parent, DOWN));
    let mut bundle = Vec::new();
    add(&mut bundle, rank, own);
    for message in below {
        bundle.extend(message.bytes()?);
    }
    if let (Some(parent), Some(down)) = (parent, down.transpose()?) {
        send_bytes(group, &bundle, parent, UP)?;
        bundle = down.bytes()?;
    }
    for child in children() {
        send_bytes(group, &bundle, child, DOWN)?;
    }
    parts(&bundle, size).ok_or_else(|| Stopped::Wrong(0, "it is cut off".to_owned()))
}

/// One more part: whose, how long, what.
fn add(bundle: &mut Vec<u8>, rank: usize, own: &[u8]) {
    bundle.extend((rank as u64).to_le_bytes());
    bundle.extend((own.len() as u64).to_le_bytes());
    bundle.extend(own);
}

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

fn send_bytes(group: &Group, bytes: &[u8], to: usize, tag: u32) -> Result<(), Lost> {
    let (first, rest) = bytes.split_at(bytes.len().min(SHORT - 8));
    let length = (bytes.len() as u64).to_le_bytes();
    let first = group.send(&Tensor::from_slice(&[&length, first].concat()), to, tag)?;
    let rest = (!rest.is_empty()).then(|| group.send(&Tensor::from_slice(rest), to, tag));
    let _ = first.wait()?;
    let _ = rest.transpose()?.map(Transfer::wait).transpose()?;
    Ok(())
}

/// Bytes that are being received, which is begun before they are sent: nobody waits for that.
struct Message<'a> {
    group: &'a Group,
    from: usize,
    tag: u32,
    first: Transfer,
}

impl<'a> Message<'a> {
    fn begin(group: &'a Group, from: usize, tag: u32) -> Result<Self, Stopped> {
        let first = group.receive(&[SHORT as i64], Kind::Uint8, from, tag)?;
        Ok(Self {
            group,
            from,
            tag,
            first,
        })
    }

    fn bytes(self) -> Result<Vec<u8>, Stopped> {
        let odd = |why: &str| Stopped::Wrong(self.from, why.to_owned());
        let of = |tensor: Tensor| bytes_of(&tensor).map_err(|_| odd("bytes that are none"));
        let first = of(self.first.wait()?)?;
        let (length, first) = number(&first).ok_or_else(|| odd("no length"))?;
        let mut all = first[..length.min(first.len())].to_vec();
        if length > first.len() {
            let rest = Tensor::f_empty([(length - first.len()) as i64], BYTES);
            let rest = rest.map_err(|error| odd(&error.to_string()))?;
            let rest = self.group.receive_into(rest, self.from, self.tag)?;
            all.extend(of(rest.wait()?)?);
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
        for rank in [1, 0, 2] {
            add(&mut bundle, rank, given[rank]);
        }
        assert_eq!(parts(&bundle, 3).unwrap(), given);
        assert_eq!(parts(&bundle, 4), None, "one is missing");
        assert_eq!(parts(&bundle, 2), None, "one too many");
        assert_eq!(parts(&bundle[..bundle.len() - 1], 3), None, "cut off");
    }
}
