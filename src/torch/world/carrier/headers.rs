//! Headers of earlier values, by which the next ones are received ahead.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::wire::FIRST;

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
