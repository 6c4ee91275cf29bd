//! Work of a step for the next one: it posts receives, and keeps the headers of its values.
//!
//! A message moves once its receiver has announced itself, which costs a message. Most steps run
//! the program of the previous step: so the receives of a remote device's values are posted again
//! when its last value has arrived, while the processes wait for other things.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::super::{Group, Lost, Transfer};
use crate::wire::FIRST;
use tch::Kind;

/// Bytes before a header that identify the call in which the value was sent.
pub(super) const MARK: usize = 8;

/// Most receives posted ahead, for all devices together: each has memory for a small value.
const MOST: usize = 512;

/// Receives of first messages, by rank and tag of the sender.
#[derive(Debug, Default)]
pub(super) struct Posted(Mutex<HashMap<(usize, u32), Transfer>>);

impl Posted {
    /// Returns the receive of a value's first message; begins it if it was not posted.
    pub(super) fn take(&self, group: &Group, from: usize, tag: u32) -> Result<Transfer, Lost> {
        let begun = self.0.lock().remove(&(from, tag));
        begun.map_or_else(|| begin(group, from, tag), Ok)
    }

    /// Posts receives under these tags again.
    pub(super) fn again(&self, group: &Group, from: usize, tags: &[u32]) -> Result<(), Lost> {
        for &tag in tags {
            let mut all = self.0.lock();
            if all.len() >= MOST {
                break;
            }
            if let Entry::Vacant(own) = all.entry((from, tag)) {
                own.insert(begin(group, from, tag)?);
            }
        }
        Ok(())
    }
}

fn begin(group: &Group, from: usize, tag: u32) -> Result<Transfer, Lost> {
    let length = MARK + FIRST;
    group.receive(&[length as i64], Kind::Uint8, from, tag)
}

/// Set to 0 in all processes to receive nothing ahead, for measuring the benefit (`benches/links`).
static AHEAD: LazyLock<bool> =
    LazyLock::new(|| std::env::var("GPIPE_RECEIVE_AHEAD").as_deref() != Ok("0"));

/// Header of the last value between this process and another under each tag.
///
/// Both sides must hold the same headers: the next program may use a tag for other devices, so
/// values are identified by the two processes and the tag alone.
#[derive(Debug, Default)]
pub(super) struct Headers(Mutex<HashMap<(usize, u32), Vec<u8>>>);

impl Headers {
    /// Returns the header of the last value to or from this rank under this tag.
    pub(super) fn of(&self, rank: usize, tag: u32) -> Option<Vec<u8>> {
        self.0.lock().get(&(rank, tag)).cloned()
    }

    /// Stores the header of a value; one that takes several messages is not received ahead.
    pub(super) fn remember(&self, rank: usize, tag: u32, header: Vec<u8>) {
        let mut all = self.0.lock();
        if header.len() <= FIRST && *AHEAD {
            all.insert((rank, tag), header);
        } else {
            all.remove(&(rank, tag));
        }
    }
}
