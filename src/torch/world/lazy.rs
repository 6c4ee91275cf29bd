//! Groups whose connections are made when first used (`TORCH_GLOO_LAZY_INIT=1`).
//!
//! gloo makes such a connection within the first send or receive of a pair of ranks, and blocks the
//! calling thread until the other rank joins. Ranks that each begin a receive from the previous one
//! would so wait in a cycle. Here a thread per pair makes the connection and then begins the queued
//! messages, in order; no other thread waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::watch::Abort;
use crate::{ProcessGroup, TorchError, Work};
use tch::Tensor;

/// Returns whether gloo connects lazily in this process, reading the variable as libtorch does.
pub(super) fn is_asked_for() -> bool {
    let word = std::env::var("TORCH_GLOO_LAZY_INIT").unwrap_or_default();
    let word = word.to_ascii_lowercase();
    matches!(&word[..], "1" | "y" | "yes" | "t" | "true")
}

/// Direction of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    To(usize),
    From(usize),
}

impl Way {
    /// Begins the message in gloo; blocks until the pair is connected.
    pub(super) fn begin(
        self,
        group: &ProcessGroup,
        tensor: &Tensor,
        tag: u32,
    ) -> Result<Work, TorchError> {
        match self {
            Self::To(rank) => group.send(tensor, rank, tag),
            Self::From(rank) => group.receive(tensor, rank, tag),
        }
    }

    fn peer(self) -> usize {
        match self {
            Self::To(rank) | Self::From(rank) => rank,
        }
    }
}

/// Connections of this process with each other rank of a group.
#[derive(Debug)]
pub(super) struct Pairs(Vec<Arc<Mutex<Connection>>>);

#[derive(Debug)]
enum Connection {
    None,
    /// Being made, with the queued messages.
    Begun(Vec<Asked>),
    Made,
}

#[derive(Debug)]
struct Asked {
    way: Way,
    tensor: Tensor,
    tag: u32,
    later: Arc<Later>,
}

impl Pairs {
    pub(super) fn new(size: usize) -> Self {
        let one = |_| Arc::new(Mutex::new(Connection::None));
        Self((0..size).map(one).collect())
    }

    /// Begins a message, or queues it until the pair is connected. *Returns* `None` if it is
    /// connected already.
    pub(super) fn later(
        &self,
        group: &Arc<ProcessGroup>,
        way: Way,
        tensor: &Tensor,
        tag: u32,
    ) -> Option<Arc<Later>> {
        let shared = &self.0[way.peer()];
        let mut connection = shared.lock();
        let is_first = match &*connection {
            Connection::Made => return None,
            Connection::None => true,
            Connection::Begun(_) => false,
        };
        if is_first {
            *connection = Connection::Begun(Vec::new());
        }
        let later = Arc::new(Later::default());
        if let Connection::Begun(asked) = &mut *connection {
            asked.push(Asked {
                way,
                tensor: tensor.shallow_clone(),
                tag,
                later: Arc::clone(&later),
            });
        }
        drop(connection);
        if is_first {
            let (shared, group) = (Arc::clone(shared), Arc::clone(group));
            let thread = std::thread::Builder::new().name("world-connect".to_owned());
            if let Err(error) = thread.spawn(move || connect(&shared, &group)) {
                later.is_begun(Err(TorchError::new(format!("no thread: {error}"))));
            }
        }
        Some(later)
    }
}

/// Begins the queued messages until none is left; the first one connects.
fn connect(shared: &Mutex<Connection>, group: &ProcessGroup) {
    loop {
        let mut connection = shared.lock();
        let asked = match &mut *connection {
            Connection::Begun(asked) if !asked.is_empty() => std::mem::take(asked),
            _ => {
                *connection = Connection::Made;
                return;
            }
        };
        drop(connection);
        for one in asked {
            let work = one.way.begin(group, &one.tensor, one.tag);
            one.later.is_begun(work);
        }
    }
}

/// A message that gloo may not have begun yet.
#[derive(Debug, Default)]
pub(super) struct Later {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    work: Option<Result<Arc<Work>, String>>,
    is_aborted: bool,
}

impl Later {
    fn is_begun(&self, work: Result<Work, TorchError>) {
        let mut state = self.state.lock();
        let work = work.map(Arc::new).map_err(|error| error.to_string());
        state.work = Some(work);
        self.changed.notify_all();
    }

    /// Waits for its end. *Returns* whether it is done; after an abort it is not, unless `past` is
    /// set.
    pub(super) fn wait(&self, at_most: Duration, past: bool) -> Result<bool, TorchError> {
        let until = Instant::now() + at_most;
        let mut state = self.state.lock();
        let work = loop {
            if state.is_aborted && !past {
                return Ok(false);
            }
            if let Some(work) = &state.work {
                break work.clone().map_err(TorchError::new)?;
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                return Ok(false);
            }
        };
        drop(state);
        work.wait(until.saturating_duration_since(Instant::now()))
    }
}

impl Abort for Later {
    fn abort(&self) {
        let mut state = self.state.lock();
        state.is_aborted = true;
        self.changed.notify_all();
        if let Some(Ok(work)) = &state.work {
            // A finished transfer has nothing to free.
            let _ = work.abort();
        }
    }
}
