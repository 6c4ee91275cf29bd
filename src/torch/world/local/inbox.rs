//! Receiving messages from another process of this host.
//!
//! A thread that waits for a message takes everything that has arrived out of the shared memory: a
//! message goes to the tensor that waits for its tag, or is kept until one does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ring::Ring;
use super::{HEADER, LOOK};
use crate::{Process, TensorBytes};

/// Most memory allocated at once on the word of a header.
const AT_ONCE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Inbox {
    ring: Ring,
    /// The sending process.
    process: Process,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes read so far.
    head: u64,
    /// The message being read.
    current: Option<Message>,
    /// Waiting tensors by tag, in order.
    awaited: HashMap<u32, VecDeque<Arc<Awaited>>>,
    /// Messages by tag that arrived before they were awaited.
    early: HashMap<u32, VecDeque<Vec<u8>>>,
    /// Description of malformed data.
    wrong: Option<String>,
}

/// A tensor to be filled by a message, from its beginning.
#[derive(Debug)]
pub(super) struct Awaited {
    tensor: TensorBytes,
    done: AtomicBool,
}

#[derive(Debug)]
struct Message {
    tag: u32,
    bytes: usize,
    read: usize,
    into: Into,
}

#[derive(Debug)]
enum Into {
    Tensor(Arc<Awaited>),
    Bytes(Vec<u8>),
}

impl Awaited {
    fn is_done(&self) -> bool {
        self.done.load(Acquire)
    }
}

impl Inbox {
    pub(super) fn new(ring: Ring, process: Process) -> Self {
        Self {
            ring,
            process,
            state: Mutex::default(),
        }
    }

    /// Returns whether the other process is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Begins to wait for a message, which may be shorter than the tensor.
    pub(super) fn receive(&self, tensor: TensorBytes, tag: u32) -> Arc<Awaited> {
        let awaited = Arc::new(Awaited {
            tensor,
            done: AtomicBool::new(false),
        });
        let mut state = self.state.lock();
        let first = state.early.get_mut(&tag).and_then(VecDeque::pop_front);
        if let Some(bytes) = first {
            state.fill(&awaited, &bytes);
        } else {
            let all = state.awaited.entry(tag).or_default();
            all.push_back(Arc::clone(&awaited));
        }
        awaited
    }

    /// Waits until a message has arrived, at most `at_most`, or until `given_up`. *Returns* whether
    /// it has.
    ///
    /// # Errors
    /// The reason why it will not arrive.
    pub(super) fn wait(
        &self,
        awaited: &Arc<Awaited>,
        at_most: Duration,
        given_up: impl Fn() -> bool,
    ) -> Result<bool, String> {
        let begin = Instant::now();
        // A process that has ended may have written before.
        let mut ended = None;
        loop {
            if awaited.is_done() {
                return Ok(true);
            }
            let head = self.read(awaited)?;
            if awaited.is_done() {
                return Ok(true);
            }
            if let Some(why) = ended {
                return Err(why);
            }
            if given_up() || begin.elapsed() > at_most {
                return Ok(false);
            }
            let news = || {
                let written = self.ring.available(head) != Some(0);
                written || awaited.is_done() || given_up() || self.ring.is_closed()
            };
            let quiet = self.ring.bell().sleep(LOOK, news);
            if self.ring.is_closed() {
                ended = Some("the other side has closed it".to_owned());
            } else if quiet && self.process.has_ended() {
                ended = Some("its process has ended".to_owned());
            }
        }
    }

    /// Takes the arrived messages. *Returns* the bytes read so far.
    fn read(&self, own: &Arc<Awaited>) -> Result<u64, String> {
        let mut state = self.state.lock();
        let mut others = false;
        while state.wrong.is_none() {
            let Some(available) = self.ring.available(state.head) else {
                state.wrong = Some("its queue is damaged".to_owned());
                break;
            };
            let Some(mut message) = state.current.take() else {
                if available < HEADER {
                    break;
                }
                let mut header = [0; HEADER];
                self.ring.get(state.head, &mut header);
                state.head += HEADER as u64;
                state.begin(&header);
                continue;
            };
            let count = available.min(message.bytes - message.read);
            if count == 0 && message.read < message.bytes {
                state.current = Some(message);
                break;
            }
            message.take(&self.ring, state.head, count);
            state.head += count as u64;
            self.ring.has_read(state.head);
            if message.read < message.bytes {
                state.current = Some(message);
            } else {
                others |= state.end(message, own);
            }
        }
        if others {
            // They sleep at the same bell.
            self.ring.bell().ring();
        }
        match &state.wrong {
            Some(why) => Err(why.clone()),
            None => Ok(state.head),
        }
    }

    /// Wakes all waiting threads.
    pub(super) fn wake(&self) {
        self.ring.bell().wake();
    }
}

impl Message {
    fn take(&mut self, ring: &Ring, head: u64, count: usize) {
        match &mut self.into {
            Into::Tensor(awaited) => ring.get_part(head, &awaited.tensor, self.read, count),
            Into::Bytes(bytes) => {
                bytes.resize(self.read + count, 0);
                ring.get(head, &mut bytes[self.read..]);
            }
        }
        self.read += count;
    }
}

impl State {
    fn begin(&mut self, header: &[u8; HEADER]) {
        let [t0, t1, t2, t3, _, _, _, _, length @ ..] = *header;
        let tag = u32::from_le_bytes([t0, t1, t2, t3]);
        let bytes = u64::from_le_bytes(length) as usize;
        let first = self.awaited.get_mut(&tag).and_then(VecDeque::pop_front);
        let into = match first {
            Some(awaited) if awaited.tensor.count() >= bytes => Into::Tensor(awaited),
            Some(awaited) => return self.too_long(bytes, &awaited),
            None => Into::Bytes(Vec::with_capacity(bytes.min(AT_ONCE))),
        };
        self.current = Some(Message {
            tag,
            bytes,
            read: 0,
            into,
        });
    }

    /// Finishes a message. *Returns* whether another tensor than this one waited for it.
    fn end(&mut self, message: Message, own: &Arc<Awaited>) -> bool {
        let filled = match message.into {
            Into::Tensor(awaited) => {
                awaited.done.store(true, Release);
                awaited
            }
            Into::Bytes(bytes) => {
                let first = self.awaited.get_mut(&message.tag);
                let Some(awaited) = first.and_then(VecDeque::pop_front) else {
                    self.early.entry(message.tag).or_default().push_back(bytes);
                    return false;
                };
                self.fill(&awaited, &bytes);
                awaited
            }
        };
        !Arc::ptr_eq(&filled, own)
    }

    fn fill(&mut self, awaited: &Awaited, bytes: &[u8]) {
        if bytes.len() > awaited.tensor.count() {
            return self.too_long(bytes.len(), awaited);
        }
        awaited.tensor.fill(bytes);
        awaited.done.store(true, Release);
    }

    fn too_long(&mut self, bytes: usize, awaited: &Awaited) {
        let room = awaited.tensor.count();
        let why = format!("a message has {bytes} bytes where {room} were expected");
        self.wrong.get_or_insert(why);
    }
}
