//! Memory of a card that no plan fills, since a process takes more than its tensors.
//!
//! A CUDA context takes some 0.3 GiB of the card since CUDA loads kernels lazily (CUDA 11.7;
//! pytorch/pytorch#107667), a cuBLAS workspace takes 32 MiB on Hopper per stage, and the caching allocator
//! keeps more than it hands out: 16.7 of 15.0 GB in pytorch/pytorch#40989.

use gpipe_partitioner::Bytes;

use super::names::heading::PIPELINE;
use super::{Failure, input};

/// Default reserve: one part in so many of a card, and its upper limit.
const PARTS: u64 = 16;
const MOST: Bytes = Bytes(2 << 30);

/// Reserve of each device.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = PIPELINE)]
pub struct Reserve {
    /// Memory of each device that the plan leaves free, such as 1GiB. It is for the CUDA context, the
    /// workspaces of libraries and fragmentation; by default a 16th of a card's memory, 2 GiB at most, and
    /// nothing of a --memory, which is what the plan may fill.
    #[arg(long, value_name = "BYTES", value_parser = input::bytes)]
    memory_reserve: Option<Bytes>,
}

impl Reserve {
    /// Returns the reserve of a device with `memory`; `is_card` means that this is the whole card.
    pub fn of(self, memory: Bytes, is_card: bool) -> Bytes {
        let usual = if is_card {
            Bytes(memory.get() / PARTS).min(MOST)
        } else {
            Bytes::ZERO
        };
        self.memory_reserve.unwrap_or(usual)
    }

    /// Returns the memory that a plan may fill.
    pub fn left(self, memory: Bytes, is_card: bool) -> Result<Bytes, Failure> {
        let reserve = self.of(memory, is_card);
        if reserve >= memory && reserve > Bytes::ZERO {
            return Err(Failure::Usage(format!(
                "--memory-reserve {reserve}: a device has {memory}, and nothing would be left of it"
            )));
        }
        Ok(memory - reserve)
    }

    /// Refuses a reserve if no memory is limited.
    pub fn check(self, is_limited: bool) -> Result<(), Failure> {
        if self.memory_reserve.is_none() || is_limited {
            return Ok(());
        }
        Err(Failure::Usage(
            "--memory-reserve: no memory is limited: give --memory too".to_owned(),
        ))
    }
}

/// Describes the reserve of each device in a sentence.
pub fn sentence(reserve: Bytes) -> String {
    format!(
        "{reserve} of each device stay free for the CUDA context, workspaces and fragmentation \
         (--memory-reserve)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: Bytes = Bytes(1 << 30);

    #[test]
    fn a_card_is_not_filled_to_the_rim_and_a_limit_is_taken_at_its_word() {
        let usual = Reserve::default();
        let left = |reserve: Reserve, memory, is_card| reserve.left(memory, is_card).ok();
        assert_eq!(left(usual, GIB * 24, true), Some(Bytes(45 << 29)));
        assert_eq!(left(usual, GIB * 140, true), Some(GIB * 138));
        assert_eq!(left(usual, GIB * 24, false), Some(GIB * 24));
        let none = Reserve {
            memory_reserve: Some(Bytes::ZERO),
        };
        assert_eq!(left(none, GIB * 24, true), Some(GIB * 24));
        let one = Reserve {
            memory_reserve: Some(GIB),
        };
        assert_eq!(left(one, GIB * 24, false), Some(GIB * 23));
        assert_eq!(left(one, GIB, true), None);
        assert!(one.check(false).is_err() && usual.check(false).is_ok());
    }
}
