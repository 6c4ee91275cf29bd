//! Sending messages to another process of this host.
//!
//! The sender itself writes as much as there is room for, and never waits: a thread writes the
//! rest, once there is room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::ring::Ring;
use super::{HEADER, LOOK};
use crate::TensorBytes;

/// Bytes written at a time, so that the other side reads while this one writes.
const CHUNK: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Outbox {
    ring: Ring,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes written so far.
    tail: u64,
    /// Messages that are not written completely.
    left: VecDeque<Message>,
    /// Messages begun so far, and those completely written.
    begun: u64,
    done: u64,
    /// Whether a thread for the remaining messages exists.
    has_thread: bool,
    closed: bool,
}

#[derive(Debug)]
struct Message {
    tensor: TensorBytes,
    tag: u32,
    /// Whether its header is written, and how many of its bytes.
    begun: bool,
    written: usize,
}

impl Outbox {
    pub(super) fn new(ring: Ring) -> Arc<Self> {
        Arc::new(Self {
            ring,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Begins to send. *Returns* the number of the message.
    ///
    /// # Errors
    /// The operating system provides no thread.
    pub(super) fn send(self: &Arc<Self>, tensor: TensorBytes, tag: u32) -> std::io::Result<u64> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        let is_first = state.left.is_empty();
        state.left.push_back(Message {
            tensor,
            tag,
            begun: false,
            written: 0,
        });
        if !is_first || self.write(&mut state) {
            return Ok(number);
        }
        if !state.has_thread {
            let own = Arc::clone(self);
            let thread = std::thread::Builder::new().name("local-sends".to_owned());
            drop(thread.spawn(move || own.work())?);
            state.has_thread = true;
        }
        self.changed.notify_all();
        Ok(number)
    }

    /// Writes as much as there is room for. *Returns* whether that was all.
    fn write(&self, state: &mut State) -> bool {
        while let Some(message) = state.left.front_mut() {
            let room = self.ring.room(state.tail);
            let bytes = message.tensor.count();
            let mut tail = state.tail;
            if !message.begun {
                if room < HEADER {
                    return false;
                }
                let (tag, length) = (message.tag.to_le_bytes(), (bytes as u64).to_le_bytes());
                self.ring.put(tail, &[&tag[..], &[0; 4], &length].concat());
                tail += HEADER as u64;
                message.begun = true;
            }
            let room = room - (tail - state.tail) as usize;
            let count = room.min(CHUNK).min(bytes - message.written);
            self.ring
                .put_part(tail, &message.tensor, message.written, count);
            message.written += count;
            tail += count as u64;
            let is_whole = message.written == bytes;
            let is_stuck = tail == state.tail;
            state.tail = tail;
            if is_whole {
                state.left.pop_front();
                state.done += 1;
            } else if is_stuck {
                return false;
            }
            self.ring.wrote(tail);
        }
        true
    }

    /// Body of the thread.
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            if state.left.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            let is_all = self.write(&mut state);
            self.changed.notify_all();
            if !is_all {
                let tail = state.tail;
                drop(state);
                let has_room = || self.ring.room(tail) > HEADER;
                self.ring.room_bell().sleep(LOOK, has_room);
                state = self.state.lock();
            }
        }
    }

    /// Waits until a message is written, at most `at_most`, or until `given_up`. *Returns* whether
    /// it is.
    pub(super) fn wait(&self, number: u64, at_most: Duration, given_up: impl Fn() -> bool) -> bool {
        let begin = Instant::now();
        let mut state = self.state.lock();
        while state.done <= number {
            if given_up() || begin.elapsed() > at_most {
                return false;
            }
            self.changed.wait_for(&mut state, LOOK);
        }
        true
    }

    /// Stops writing.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
        self.ring.room_bell().wake();
        self.ring.close();
    }
}
