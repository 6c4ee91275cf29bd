//! A byte queue in memory shared by two processes, one that writes and one that reads.
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
//! The reader owns the bytes between head and tail, the writer the rest: storing tail (release)
//! hands bytes over, storing head hands them back. A thread going to sleep counts itself as a
//! sleeper and then checks the queue once more; a thread that changes the queue then checks for
//! sleepers (both sequentially consistent): so one of them sees the other.

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

use crate::{SharedMemory, TensorBytes, sleep_at, wake_at};

/// Most bytes in the queue. It fits in a core's cache, so more would gain nothing.
pub(super) const CAPACITY: usize = 1 << 20;
/// Size of a queue. Page-aligned for any page size.
pub(super) const BYTES: usize = DATA + CAPACITY;

const TAIL: usize = 0;
const HEAD: usize = 64;
const BELL: usize = 128;
const ROOM: usize = 192;
const CLOSED: usize = 256;
/// Identifies the memory.
const NAME: usize = 320;
const DATA: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Ring(pub(super) SharedMemory);

/// Where one side sleeps until the other one has acted.
pub(super) struct Bell<'a> {
    word: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl Bell<'_> {
    /// Wakes the sleepers.
    pub(super) fn ring(&self) {
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.wake();
        }
    }

    /// Does the same, even if no sleeper is counted.
    pub(super) fn wake(&self) {
        self.word.fetch_add(1, SeqCst);
        wake_at(self.word);
    }

    /// Sleeps until it rings, at most `at_most`, unless `wanted` holds. *Returns* whether nothing
    /// happened.
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
    /// Names new memory, so that the other process recognizes it.
    pub(super) fn set_name(&self, name: u64) {
        self.0.number(NAME).store(name, SeqCst);
    }

    pub(super) fn name(&self) -> u64 {
        self.0.number(NAME).load(SeqCst)
    }

    /// Bell at which the reader sleeps.
    pub(super) fn bell(&self) -> Bell<'_> {
        self.bell_at(BELL)
    }

    /// Bell at which the writer sleeps.
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

    /// Returns how many bytes may be written after the first `tail`.
    pub(super) fn room(&self, tail: u64) -> usize {
        let used = tail.wrapping_sub(self.0.number(HEAD).load(Acquire));
        CAPACITY.saturating_sub(usize::try_from(used).unwrap_or(CAPACITY))
    }

    /// Returns how many bytes may be read after the first `head`; `None` if the queue is corrupt.
    pub(super) fn available(&self, head: u64) -> Option<usize> {
        let there = self.0.number(TAIL).load(Acquire).wrapping_sub(head);
        usize::try_from(there)
            .ok()
            .filter(|bytes| *bytes <= CAPACITY)
    }

    /// Hands all bytes before `tail` to the reader.
    pub(super) fn wrote(&self, tail: u64) {
        self.0.number(TAIL).store(tail, Release);
        self.bell().ring();
    }

    /// Hands all bytes before `head` back to the writer.
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

    /// Does the same with `bytes` bytes of a tensor from `from` on.
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

/// Returns the one or two pieces of a range of bytes: place, index of the first byte, length.
fn pieces(at: u64, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let place = (at % CAPACITY as u64) as usize;
    let first = bytes.min(CAPACITY - place);
    let pieces = [(DATA + place, 0, first), (DATA, first, bytes - first)];
    pieces.into_iter().filter(|(_, _, count)| *count > 0)
}
