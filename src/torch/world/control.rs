//! Short messages between processes, through the store: agreement on matters other than a step's
//! tensors, on separate threads while steps run.
//!
//! Each rank has an inbox in the store: messages numbered from 1, by a counter that senders
//! increment. One thread of each process waits for the next number of its inbox, takes the message
//! out of the store, and delivers it by *topic* in this process's memory. So only this thread waits
//! for the store, and an end of the world frees all others. Another thread sends. The store holds
//! one counter per rank and the unread messages.
//!
//! Messages survive a failure that all processes survive ([`World::renew`](super::World::renew)); a
//! loss frees every waiting thread.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::group::Places;
use super::keys;
use super::lost::Lost;
use super::watch::{Held, Watch};
use super::watcher::with;
use crate::{Store, TorchError};

/// Longer than any run.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// Body of a thread with its own connection to the store: if the store is gone, connecting takes as
/// long as a meeting may, and no other thread is to wait for that.
type Body = Box<dyn FnOnce(Store) + Send>;

/// Sends and receives messages.
#[derive(Debug)]
pub struct Control {
    watch: Arc<Watch>,
    places: Arc<Places>,
    inbox: Arc<Inbox>,
    /// `None` once closed.
    outbox: Mutex<Option<Sender<Sent>>>,
    numbers: AtomicU64,
}

#[derive(Debug)]
struct Sent {
    to: usize,
    message: Vec<u8>,
}

/// A message as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    from: usize,
    topic: String,
    text: String,
}

#[derive(Debug, Default)]
struct Inbox {
    /// Sender and text of received messages, by topic.
    come: Mutex<HashMap<String, VecDeque<(usize, String)>>>,
    /// Number of the awaited message.
    awaited: AtomicI64,
    closing: AtomicBool,
}

impl Control {
    /// Starts the two threads as well.
    pub(super) fn new(
        watch: &Arc<Watch>,
        places: &Arc<Places>,
        server: &Lost,
    ) -> (Arc<Self>, [(&'static str, Body); 2]) {
        let inbox = Arc::<Inbox>::default();
        let (outbox, sent) = mpsc::channel();
        let listener = Listener {
            rank: places.rank,
            inbox: Arc::clone(&inbox),
            watch: Arc::clone(watch),
            server: server.clone(),
        };
        let own = Arc::clone(&listener.inbox);
        let (rank, server, to) = (places.rank, server.clone(), Arc::clone(watch));
        let sends = move |store: Store| {
            if let Err(error) = send_all(&store, &sent, rank, &own) {
                to.broken(with(&server, &keys::said(&error)));
            }
        };
        let listens = move |store: Store| listener.run(&store);
        let control = Self {
            watch: Arc::clone(watch),
            places: Arc::clone(places),
            inbox,
            outbox: Mutex::new(Some(outbox)),
            numbers: AtomicU64::new(0),
        };
        let bodies: [(&str, Body); 2] = [
            ("world-send", Box::new(sends)),
            ("world-receive", Box::new(listens)),
        ];
        (Arc::new(control), bodies)
    }

    /// Rank of this process.
    pub fn rank(&self) -> usize {
        self.places.rank
    }

    /// Processes of the group.
    pub fn size(&self) -> usize {
        self.places.hosts.len()
    }

    /// Returns the host of a rank.
    pub fn host(&self, rank: usize) -> &str {
        self.places.hosts.get(rank).map_or("", String::as_str)
    }

    /// Returns a new number: the same in all processes, if all call this in the same order.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Protects work of this process: while the result lives, a failure of another process does not
    /// end this one.
    pub fn hold(&self) -> Held {
        self.watch.hold()
    }

    /// Sends a text of at most a few MiB. Returns before it has arrived; if it cannot be sent, the
    /// world is lost.
    pub fn send(&self, to: usize, topic: &str, text: String) {
        let message = Message {
            from: self.rank(),
            topic: topic.to_owned(),
            text,
        };
        // Plain data always serializes.
        let message = serde_json::to_vec(&message).unwrap_or_default();
        if let Some(outbox) = &*self.outbox.lock() {
            // A thread that died has reported the reason to the watch.
            let _ = outbox.send(Sent { to, message });
        }
    }

    /// Waits for a message on a topic. *Returns* sender and text.
    ///
    /// # Errors
    /// A process is lost, or the world is left.
    pub fn receive(&self, topic: &str) -> Result<(usize, String), Lost> {
        let come = || {
            let mut come = self.inbox.come.lock();
            let own = come.get_mut(topic)?;
            let message = own.pop_front();
            if own.is_empty() {
                come.remove(topic);
            }
            message
        };
        self.watch.wait_through(come).map_err(|lost| {
            lost.unwrap_or_else(|| {
                let why = "it has left the world while others were to tell it something";
                self.places.gone(self.rank(), why.to_owned())
            })
        })
    }

    /// Ends both threads, once all messages are in the store.
    pub(super) fn close(&self) {
        self.inbox.closing.store(true, Ordering::SeqCst);
        self.outbox.lock().take();
    }
}

/// Sends messages until the channel is closed.
fn send_all(
    store: &Store,
    sent: &Receiver<Sent>,
    own: usize,
    inbox: &Inbox,
) -> Result<(), TorchError> {
    let store = store.another()?;
    for Sent { to, message } in sent {
        let number = store.add(&keys::sent(to), 1)?;
        store.set(&keys::message(to, number), &message)?;
    }
    // Any number will do: the listener has seen before it waits that it is to end, or waits for
    // this one.
    let awaited = inbox.awaited.load(Ordering::SeqCst);
    store.set(&keys::message(own, awaited), b"")
}

/// The thread that waits for messages.
struct Listener {
    rank: usize,
    inbox: Arc<Inbox>,
    watch: Arc<Watch>,
    server: Lost,
}

impl Listener {
    fn run(&self, store: &Store) {
        let store = match store.another() {
            Ok(store) => store,
            Err(error) => return self.broken(&keys::said(&error)),
        };
        for number in 1.. {
            self.inbox.awaited.store(number, Ordering::SeqCst);
            if self.inbox.closing.load(Ordering::SeqCst) {
                return;
            }
            let message = match taken(&store, &keys::message(self.rank, number)) {
                Ok(message) => message,
                Err(error) => return self.broken(&keys::said(&error)),
            };
            if message.is_empty() {
                return;
            }
            let Ok(message) = serde_json::from_slice::<Message>(&message) else {
                let text = String::from_utf8_lossy(&message);
                return self.broken(&format!("it holds the message `{text}`"));
            };
            let mut come = self.inbox.come.lock();
            let own = come.entry(message.topic).or_default();
            own.push_back((message.from, message.text));
            drop(come);
            self.watch.notify();
        }
    }

    fn broken(&self, why: &str) {
        self.watch.broken(with(&self.server, why));
    }
}

/// Waits for a key, and removes it.
fn taken(store: &Store, key: &str) -> Result<Vec<u8>, TorchError> {
    while !store.wait(std::slice::from_ref(&key.to_owned()), FOREVER)? {}
    let value = store.get(key)?;
    store.remove(key)?;
    Ok(value)
}

#[cfg(test)]
mod tests;
