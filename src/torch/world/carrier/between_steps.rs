//! Exchanges between steps: bytes from all to all, values from one process to another.

use std::sync::Arc;

use super::vote::{Exchange, Message, Sent, Stopped, TOLD};
use super::{Group, Lost, Payload, World, WorldCarrier};
use crate::Values;
use crate::wire::{Header, Incoming, Outgoing};

/// A tag, below those of votes and above those of a step's values.
const VALUES: u32 = TOLD - 1;

impl<V: Payload> WorldCarrier<V> {
    /// Gathers the data of each process, in the order of ranks; all of them call this. This is not
    /// a vote: a process that has all data does not know that the others have.
    ///
    /// *Complexity*: log2(size) sequential messages, with at most the bytes of all processes
    /// together.
    ///
    /// # Errors
    /// A process is lost, or failed before this call, or is in another call.
    #[doc(alias = "all_gather")]
    pub fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
        self.shared.gather(own)
    }

    /// Sends values to one process, and waits until they have arrived. The receiver
    /// [takes](Self::take) them.
    ///
    /// # Errors
    /// They cannot be sent; or a process is lost, or has failed.
    pub(crate) fn hand(&self, values: &Values, to: usize) -> anyhow::Result<()> {
        let outgoing = Outgoing::new(values, None)?;
        let group = self.group();
        Sent::begin(&group, outgoing.header(), to, VALUES)?.wait(&never)?;
        for message in outgoing.packs()? {
            let _ = group.send(&message, to, VALUES)?.wait()?;
        }
        Ok(())
    }

    /// Waits for values of one process.
    ///
    /// # Errors
    /// A process is lost, or has failed.
    pub(crate) fn take(&self, from: usize) -> Result<Values, Lost> {
        self.try_take(from)
            .map_err(|stopped| self.shared.wrong(stopped))
    }

    fn try_take(&self, from: usize) -> Result<Values, Stopped> {
        let group = self.group();
        let header = Message::begin(&group, from, VALUES)?.bytes(&never)?;
        let odd = |why: String| Stopped::Wrong(from, why);
        let header =
            Header::read(&header, self.shared.limit).map_err(|why| odd(why.to_string()))?;
        let mut incoming = Incoming::new(header, None).map_err(|why| odd(why.to_string()))?;
        for message in incoming.messages().map_err(|why| odd(why.to_string()))? {
            let _ = group.receive_into(message, from, VALUES)?.wait()?;
        }
        incoming.values().map_err(|why| odd(why.to_string()))
    }

    /// Sends a number to one process, which [takes](Self::take_number) it.
    pub(crate) fn hand_number(&self, number: f64, to: usize) -> Result<(), Lost> {
        Sent::begin(&self.group(), &number.to_le_bytes(), to, VALUES)?.wait(&never)
    }

    /// Waits for a number of one process.
    pub(crate) fn take_number(&self, from: usize) -> Result<f64, Lost> {
        let taken = Message::begin(&self.group(), from, VALUES).map_err(Stopped::from);
        let taken = taken.and_then(|message| message.bytes(&never));
        let bytes = taken.map_err(|stopped| self.shared.wrong(stopped))?;
        let number = bytes.try_into().map(f64::from_le_bytes);
        number.map_err(|_| {
            self.shared
                .wrong(Stopped::Wrong(from, "no number".to_owned()))
        })
    }
}

/// Never continues: any end of the generation ends the exchange.
pub(super) fn never(_: &Lost) -> bool {
    false
}

/// Gathers data from all processes of a world, before there is a carrier.
pub fn gather_once(world: &World, own: &[u8]) -> Result<Vec<Vec<u8>>, Lost> {
    let group = Arc::new(world.group()?);
    tell_all(world, &group, own)
}

/// Gathers data from all processes of a group.
pub(in crate::world) fn tell_all(
    world: &World,
    group: &Arc<Group>,
    own: &[u8],
) -> Result<Vec<Vec<u8>>, Lost> {
    let place = (world.rank(), world.size());
    let all = Exchange::begin(group, place, TOLD).map_err(Stopped::from);
    let all = all.and_then(|exchange| exchange.finish(own, &never));
    all.map_err(|stopped| match stopped {
        Stopped::Lost(lost) => lost,
        Stopped::Wrong(from, why) => world.lose(&format!(
            "what rank {from} has sent where processes meet: {why}"
        )),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::ranks;
    use tch::{Device, Kind, Tensor};

    /// Makes `count` tensors of these sizes in turn, every third one absent.
    fn values(count: i64, sizes: &[i64]) -> Values {
        let one = |i: i64| {
            let size = sizes[i as usize % sizes.len()];
            (i % 3 != 2).then(|| Tensor::arange(size, (Kind::Double, Device::Cpu)) + i)
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn values_between_steps_arrive_whatever_their_sizes() {
        ranks(2, |world| {
            let world = Arc::new(world);
            let carrier = WorldCarrier::<Values>::connect(&world, vec![0, 1], 1 << 30).unwrap();
            for (count, sizes) in [
                (0, &[1][..]),
                (2, &[5]),
                (40, &[100, 3]),
                (200, &[10]),
                (7, &[100_000, 8]),
            ] {
                let sent = values(count, sizes);
                if world.rank() == 0 {
                    carrier.hand(&sent, 1).unwrap();
                    continue;
                }
                let came = carrier.take(0).unwrap();
                assert_eq!(came.len(), sent.len());
                for (came, sent) in came.iter().zip(sent.iter()) {
                    assert_eq!(came, sent);
                }
            }
            drop(carrier);
            Arc::into_inner(world).unwrap().leave().unwrap();
        });
    }
}
