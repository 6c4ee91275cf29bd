//! A queue of bytes in memory that two processes share: one of them writes, the other one reads.
//!
//! ```text
//! tail    how many bytes were written so far; the writer's
//! head    how many were read; the reader's
//! bell    counts up when there is something to read, if the reader sleeps at it
//! room    counts up when there is room again, if the writer sleeps at it
//! closed  the writer writes no more
//! data    byte n of all is at n modulo CAPACITY
//! ```
//!
//! What lies between head and tail is the reader's, the rest is the writer's: a store of tail
//! (release) gives bytes over, one of head gives them back. Whoever goes to sleep counts itself as a
//! sleeper and looks at the queue once more behind that; whoever changes the queue looks for
//! sleepers behind that (both sequentially consistent): one of them sees the other.

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

use crate::torch::{SharedMemory, TensorBytes, sleep_at, wake_at};

/// Bytes that are on their way at most. As long as it fits in a core's cache, more gains nothing.
pub(super) const CAPACITY: usize = 1 << 20;
/// What a queue takes. It begins at a page, whatever the system's have.
pub(super) const BYTES: usize = DATA + CAPACITY;

const TAIL: usize = 0;
const HEAD: usize = 64;
const BELL: usize = 128;
const ROOM: usize = 192;
const CLOSED: usize = 256;
/// Which memory it is.
const NAME: usize = 320;
const DATA: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Ring(pub(super) SharedMemory);

/// Where one side sleeps until the other one has done something.
pub(super) struct Bell<'a> {
    word: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl Bell<'_> {
    /// Wakes those who sleep.
    pub(super) fn ring(&self) {
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.wake();
        }
    }

    /// The same, whoever says that it sleeps.
    pub(super) fn wake(&self) {
        self.word.fetch_add(1, SeqCst);
        wake_at(self.word);
    }

    /// Sleeps until it rings, for so long at most, unless `wanted` is there. *Returns* whether
    /// nothing has happened.
    pub(super) fn sleep(&self, at_most: Duration, wanted: impl FnOnce() -> bool) -> bool {
        self.sleepers.fetch_add(1, SeqCst);
        let before = self.word.load(SeqCst);
        fence(SeqCst);
        let quiet = !wanted() && {
            sleep_at(self.word, before, at_most);
            self.word.load(SeqCst) == before
        };
        self.sleepers.fetch_sub(1, SeqCst);
        quiet
    }
}

impl Ring {
    /// Gives new memory a name by which the other process knows it.
    pub(super) fn set_name(&self, name: u64) {
        self.0.number(NAME).store(name, SeqCst);
    }

    pub(super) fn name(&self) -> u64 {
        self.0.number(NAME).load(SeqCst)
    }

    /// Where the reader sleeps.
    pub(super) fn bell(&self) -> Bell<'_> {
        self.bell_at(BELL)
    }

    /// Where the writer sleeps.
    pub(super) fn room_bell(&self) -> Bell<'_> {
        self.bell_at(ROOM)
    }

    fn bell_at(&self, place: usize) -> Bell<'_> {
        Bell {
            word: self.0.word(place),
            sleepers: self.0.word(place + 4),
        }
    }

    pub(super) fn close(&self) {
        self.0.word(CLOSED).store(1, SeqCst);
        self.bell().wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.word(CLOSED).load(SeqCst) != 0
    }

    /// How many bytes may be written behind the first `tail`.
    pub(super) fn room(&self, tail: u64) -> usize {
        let used = tail.wrapping_sub(self.0.number(HEAD).load(Acquire));
        CAPACITY.saturating_sub(usize::try_from(used).unwrap_or(CAPACITY))
    }

    /// How many bytes may be read behind the first `head`; none where that makes no sense.
    pub(super) fn available(&self, head: u64) -> Option<usize> {
        let there = self.0.number(TAIL).load(Acquire).wrapping_sub(head);
        usize::try_from(there)
            .ok()
            .filter(|bytes| *bytes <= CAPACITY)
    }

    /// All before is there to be read.
    pub(super) fn wrote(&self, tail: u64) {
        self.0.number(TAIL).store(tail, Release);
        self.bell().ring();
    }

    /// All before may be written over.
    pub(super) fn has_read(&self, head: u64) {
        self.0.number(HEAD).store(head, Release);
        self.room_bell().ring();
    }

    pub(super) fn put(&self, tail: u64, bytes: &[u8]) {
        for (place, begin, count) in pieces(tail, bytes.len()) {
            self.0.put(place, &bytes[begin..begin + count]);
        }
    }

    pub(super) fn get(&self, head: u64, into: &mut [u8]) {
        for (place, begin, count) in pieces(head, into.len()) {
            self.0.get(place, &mut into[begin..begin + count]);
        }
    }

    /// The same with so many bytes of a tensor from `from` on.
    pub(super) fn put_part(&self, tail: u64, tensor: &TensorBytes, from: usize, bytes: usize) {
        for (place, begin, count) in pieces(tail, bytes) {
            self.0.put_part(place, tensor, from + begin, count);
        }
    }

    pub(super) fn get_part(&self, head: u64, tensor: &TensorBytes, from: usize, bytes: usize) {
        for (place, begin, count) in pieces(head, bytes) {
            self.0.get_part(place, tensor, from + begin, count);
        }
    }
}

/// Where so many bytes are, in one piece or in two: place, index of the first byte, number of them.
fn pieces(at: u64, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let place = (at % CAPACITY as u64) as usize;
    let first = bytes.min(CAPACITY - place);
    let pieces = [(DATA + place, 0, first), (DATA, first, bytes - first)];
    pieces.into_iter().filter(|(_, _, count)| *count > 0)
}
