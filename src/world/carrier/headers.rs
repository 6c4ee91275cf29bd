//! The headers of the values before, by which the next ones are received ahead.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::torch::wire::FIRST;

/// Set to 0 in all processes, nothing is received ahead: for the measurement of what that is worth
/// (`benches/links`).
static AHEAD: LazyLock<bool> =
    LazyLock::new(|| std::env::var("GPIPE_RECEIVE_AHEAD").as_deref() != Ok("0"));

/// The header of the last value that went between this process and another one under each tag.
///
/// Both sides must know the same: a tag may be that of other devices in the next program, so the
/// two processes and the tag are all that tells values apart.
#[derive(Debug, Default)]
pub(super) struct Headers(Mutex<HashMap<(usize, u32), Vec<u8>>>);

impl Headers {
    /// Of the last value that went to or came from this rank under this tag.
    pub(super) fn of(&self, rank: usize, tag: u32) -> Option<Vec<u8>> {
        self.0.lock().get(&(rank, tag)).cloned()
    }

    /// Notes the header of a value; one that takes several messages is not received ahead.
    pub(super) fn remember(&self, rank: usize, tag: u32, header: Vec<u8>) {
        let mut all = self.0.lock();
        if header.len() <= FIRST && *AHEAD {
            all.insert((rank, tag), header);
        } else {
            all.remove(&(rank, tag));
        }
    }
}
