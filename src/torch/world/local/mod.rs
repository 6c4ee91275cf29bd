//! Messages between processes of one host, through shared memory.
//!
//! A message over the host's own network costs both sides a thread switch and several system calls
//! besides moving its bytes. So each process of a group has a queue in shared memory for each other
//! process of its host. All else is unchanged: messages, tags, order, waiting and aborts. Two
//! processes count as being on one host if one can open the other's memory, whatever the host's
//! name; otherwise gloo carries the messages. Processes in different network namespaces are on
//! different hosts.
//!
//! `GPIPE_SHARED_MEMORY=0` disables this for a process.

mod inbox;
mod outbox;
mod ring;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::lost::Lost;
use super::watch::{Abort, Watch};
use crate::{Process, SharedFile, TensorBytes, TorchError};
use inbox::{Awaited, Inbox};
use outbox::Outbox;
use ring::{BYTES, Ring};
use tch::Tensor;

/// Bytes before each message: its tag and length.
const HEADER: usize = 16;

/// How often a sleeping thread checks that the other process is alive.
const LOOK: Duration = Duration::from_millis(20);

/// The queues of a group.
pub(super) struct Local {
    inboxes: HashMap<usize, Arc<Inbox>>,
    outboxes: HashMap<usize, Arc<Outbox>>,
    aborted: AtomicBool,
    watch: Arc<Watch>,
    /// Its id in the watch.
    id: OnceLock<u64>,
}

/// Ends all waits.
struct Aborts(Weak<Local>);

impl Abort for Aborts {
    fn abort(&self) {
        let Some(local) = self.0.upgrade() else {
            return;
        };
        local.aborted.store(true, Ordering::SeqCst);
        local.inboxes.values().for_each(|inbox| inbox.wake());
    }

    fn ended(&self) -> Option<usize> {
        let local = self.0.upgrade()?;
        let mut all = local.inboxes.iter();
        all.find_map(|(rank, inbox)| inbox.has_ended().then_some(*rank))
    }
}

/// A message in transit.
#[derive(Clone)]
pub(super) struct LocalWork {
    local: Arc<Local>,
    what: What,
}

#[derive(Clone)]
enum What {
    Received(Arc<Inbox>, Arc<Awaited>),
    Sent(Arc<Outbox>, u64),
}

impl LocalWork {
    /// Waits for its end, at most `at_most`. *Returns* whether it is done; an end of the generation
    /// ends the wait, unless `past` is set.
    pub(super) fn wait(&self, at_most: Duration, past: bool) -> Result<bool, TorchError> {
        let given_up = || !past && self.local.aborted.load(Ordering::SeqCst);
        match &self.what {
            What::Received(inbox, awaited) => {
                let waited = inbox.wait(awaited, at_most, given_up);
                waited.map_err(TorchError::new)
            }
            What::Sent(outbox, number) => Ok(outbox.wait(*number, at_most, given_up)),
        }
    }
}

impl Local {
    /// Begins to send; `None` if that rank is on another host.
    pub(super) fn send(
        self: &Arc<Self>,
        tensor: &Tensor,
        to: usize,
        tag: u32,
    ) -> Option<Result<LocalWork, TorchError>> {
        let outbox = self.outboxes.get(&to)?;
        let sent = TensorBytes::new(tensor).and_then(|tensor| {
            let number = outbox.send(tensor, tag);
            number.map_err(|error| TorchError::new(format!("no thread for sends: {error}")))
        });
        Some(sent.map(|number| self.work(What::Sent(Arc::clone(outbox), number))))
    }

    /// Begins to receive; `None` if that rank is on another host.
    pub(super) fn receive(
        self: &Arc<Self>,
        tensor: &Tensor,
        from: usize,
        tag: u32,
    ) -> Option<Result<LocalWork, TorchError>> {
        let inbox = self.inboxes.get(&from)?;
        let awaited = TensorBytes::new(tensor).map(|tensor| inbox.receive(tensor, tag));
        Some(awaited.map(|awaited| self.work(What::Received(Arc::clone(inbox), awaited))))
    }

    fn work(self: &Arc<Self>, what: What) -> LocalWork {
        LocalWork {
            local: Arc::clone(self),
            what,
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Some(id) = self.id.get() {
            self.watch.forget(*id);
        }
        self.outboxes.values().for_each(|outbox| outbox.close());
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.outboxes.keys();
        f.debug_set().entries(ranks).finish()
    }
}

impl fmt::Debug for LocalWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.local.fmt(f)
    }
}

/// A process's memory for others to write to: its host, its process id there, the number of the
/// file, and the name of the memory.
struct Offer<'a> {
    host: &'a str,
    process: u32,
    file: u32,
    name: u64,
}

impl Offer<'_> {
    fn written(&self) -> String {
        let Self {
            host,
            process,
            file,
            name,
        } = self;
        format!("{process} {file} {name} {host}")
    }

    fn read(bytes: &[u8]) -> Option<Offer<'_>> {
        let mut words = std::str::from_utf8(bytes).ok()?.splitn(4, ' ');
        Some(Offer {
            process: words.next()?.parse().ok()?,
            file: words.next()?.parse().ok()?,
            name: words.next()?.parse().ok()?,
            host: words.next()?,
        })
    }
}

/// Identifies this host: by its boot id and this process's network namespace.
fn host() -> Option<String> {
    let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", start.trim(), network.display()))
}

/// Connects this process, of these ranks' hosts, with those of the same host; all of them call this.
/// `gather` brings the data of all. `None` if there are none.
pub(super) fn connect(
    (own, hosts): (usize, &[String]),
    (watch, generation): (&Arc<Watch>, u64),
    gather: impl Fn(&[u8]) -> Result<Vec<Vec<u8>>, Lost>,
) -> Result<Option<Arc<Local>>, Lost> {
    let mut names: Vec<&String> = hosts.iter().collect();
    names.sort_unstable();
    if names.windows(2).all(|two| two[0] != two[1]) {
        return Ok(None);
    }
    let beside = |rank: &usize| *rank != own && hosts[*rank] == hosts[own];
    let others: Vec<usize> = (0..hosts.len()).filter(beside).collect();
    let name = RandomState::new().build_hasher().finish();
    let host = host().filter(|_| std::env::var("GPIPE_SHARED_MEMORY").as_deref() != Ok("0"));
    let file = SharedFile::new(hosts.len() * BYTES).ok();
    // The memory that each rank writes to.
    let mut rings: HashMap<usize, Ring> = HashMap::new();
    for other in others.iter().filter(|_| host.is_some()) {
        if let Some(Ok(memory)) = file.as_ref().map(|file| slot(file, *other)) {
            memory.set_name(name);
            rings.insert(*other, memory);
        }
    }
    let offer = match (&host, &file) {
        (Some(host), Some(file)) if !rings.is_empty() => Offer {
            host,
            process: std::process::id(),
            file: file.number(),
            name,
        }
        .written(),
        _ => String::new(),
    };
    let offers = gather(offer.as_bytes())?;
    let mut inboxes = HashMap::new();
    let mut outboxes = HashMap::new();
    for other in others {
        let offer = Offer::read(&offers[other]).filter(|offer| Some(offer.host) == host.as_deref());
        let (Some(offer), Some(ring)) = (offer, rings.remove(&other)) else {
            continue;
        };
        let theirs = SharedFile::of(offer.process, offer.file);
        let theirs = theirs.and_then(|file| slot(&file, own));
        if let (Ok(theirs), Ok(process)) = (theirs, Process::of(offer.process))
            && theirs.name() == offer.name
        {
            inboxes.insert(other, Arc::new(Inbox::new(ring, process)));
            outboxes.insert(other, Outbox::new(theirs));
        }
    }
    // Both sides of a pair have opened the other's memory, or neither uses it.
    let can: Vec<u8> = (0..hosts.len())
        .map(|rank| u8::from(outboxes.contains_key(&rank)))
        .collect();
    let all = gather(&can)?;
    let both = |rank: &usize| all[*rank].get(own) == Some(&1);
    inboxes.retain(|rank, _| both(rank));
    outboxes.retain(|rank, _| both(rank));
    if outboxes.is_empty() {
        return Ok(None);
    }
    let local = Arc::new(Local {
        inboxes,
        outboxes,
        aborted: AtomicBool::new(false),
        watch: Arc::clone(watch),
        id: OnceLock::new(),
    });
    let aborts = Arc::new(Aborts(Arc::downgrade(&local)));
    let id = watch.register(generation, aborts);
    let _ = local.id.set(id);
    Ok(Some(local))
}

/// Returns the memory in this file that a rank writes to.
fn slot(file: &SharedFile, rank: usize) -> std::io::Result<Ring> {
    file.map((rank * BYTES) as u64, BYTES).map(Ring)
}

#[cfg(test)]
mod tests;
