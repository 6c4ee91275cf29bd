//! One process's view of its world's state, and the transfers that an end of the world frees.
//!
//! The world goes through *generations*. In each of them the processes make groups and work
//! together until the generation ends: all have left it, or a process failed. Its end is one value
//! in the store, which is set once: the first process that fails sets it, and all report the same.
//! Three threads of each process maintain this:
//!
//! - the [watcher](super::watcher) waits for that value;
//! - the [beat](super::beat) counts up this process's own number, looks whether that of the next
//!   rank does, and sets the value when this process has failed or the next one is silent;
//! - the [clock](super::watcher::clock) ends the generation here, and here alone, when the store itself
//!   has been silent for too long.
//!
//! The thread that ends a generation aborts all transfers, which frees the threads that wait for
//! them, and runs the callbacks of `on_abort`. Only these three threads ever wait for the store:
//! all others wait for this state.
//!
//! After a reported failure (`gone: false`) all processes are still alive and heartbeats continue;
//! `renew` begins the next generation, with new groups under new keys. After a loss there is none.
//! A process that notices a loss when its generation has already ended by a failure sets the value
//! of the next one. The watcher waits for that at once, so that background work learns of it before
//! the world is renewed ([control](super::control)).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::lost::{End, Lost};
use crate::Work;

mod exit_guard;
mod threads;

pub use exit_guard::Held;

/// Something that an end of the generation frees.
pub(super) trait Abort: Send + Sync {
    fn abort(&self);

    /// Returns a peer rank whose process has ended, if that can be detected.
    fn ended(&self) -> Option<usize> {
        None
    }
}

impl Abort for Work {
    fn abort(&self) {
        // Finished work has nothing to free.
        let _ = Self::abort(self);
    }
}

type Callback = Box<dyn FnOnce(&Lost) + Send>;

/// The state, and the threads waiting for it to change.
pub(super) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    generation: u64,
    /// End of this generation.
    end: Option<End>,
    /// End of the previous generation.
    before: Option<Lost>,
    /// Ends of generations that this process has not begun yet.
    ahead: BTreeMap<u64, End>,
    /// Failure for the beat to publish.
    asked: Option<Lost>,
    /// Whether the beat is to report that this process is done.
    leaving: bool,
    /// Loss of the store, which ends every later generation too.
    broken: Option<Lost>,
    /// Time of the store's last answer.
    answered: Instant,
    /// Returns whether the store has ever answered.
    has_answered: bool,
    /// Whether threads are no longer needed.
    closing: bool,
    /// Number of threads connected to the store.
    connected: usize,
    /// Number of pieces of work to finish even after a failure.
    held: usize,
    works: HashMap<u64, Arc<dyn Abort>>,
    /// The current or last call of this process.
    call: Option<Call>,
    /// Calls begun in this generation.
    calls: u64,
    /// Votes ended in this generation.
    votes: u64,
    next_work: u64,
    callbacks: Vec<Callback>,
}

/// A call that all processes make together, identified by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) generation: u64,
    pub(super) number: u64,
    /// See [`Lost::at`].
    pub(super) at: u64,
    pub(super) name: Arc<str>,
}

/// Next tasks of the beat.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) generation: u64,
    /// Failure to set as the generation's end.
    pub(super) abort: Option<Lost>,
    /// Whether to report that this process is done.
    pub(super) leave: bool,
    /// Whether to say farewell, after which nothing follows.
    pub(super) close: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Watch")
            .field("generation", &state.generation)
            .field("end", &state.end)
            .finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                generation: 0,
                end: None,
                before: None,
                ahead: BTreeMap::new(),
                asked: None,
                leaving: false,
                broken: None,
                answered: Instant::now(),
                has_answered: false,
                closing: false,
                connected: 0,
                held: 0,
                works: HashMap::new(),
                call: None,
                calls: 0,
                votes: 0,
                next_work: 0,
                callbacks: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Returns the failure that ended the generation; `None` while it runs.
    pub(super) fn lost(&self) -> Option<Lost> {
        match &self.state.lock().end {
            Some(End::Lost(lost)) => Some(lost.clone()),
            _ => None,
        }
    }

    /// Ends a generation in this process, unless it has ended; a later one, once it begins.
    pub(super) fn end(&self, generation: u64, end: End) {
        let mut state = self.state.lock();
        if generation > state.generation {
            state.ahead.entry(generation).or_insert(end);
            self.changed.notify_all();
            return;
        }
        if state.generation != generation || state.end.is_some() {
            return;
        }
        state.end = Some(end.clone());
        state.asked = None;
        let works: Vec<_> = state.works.drain().map(|(_, work)| work).collect();
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        for work in works {
            work.abort();
        }
        // Threads that are notified find the transfers freed.
        self.changed.notify_all();
        if let End::Lost(lost) = end {
            for callback in callbacks {
                callback(&lost);
            }
        }
    }

    /// Ends this generation and all later ones, as the store is gone.
    pub(super) fn broken(&self, lost: Lost) {
        let mut state = self.state.lock();
        state.broken.get_or_insert_with(|| lost.clone());
        let generation = state.generation;
        drop(state);
        self.end(generation, End::Lost(lost));
    }

    /// Makes the beat end a generation for all, even one that may have ended, and waits for the
    /// common result.
    ///
    /// *Returns* the first failure: this one, or another.
    pub(super) fn ask_in(&self, generation: u64, lost: Lost) -> Lost {
        let mut state = self.state.lock();
        if state.generation > generation {
            return state.before.clone().unwrap_or(lost);
        }
        if state.end.is_none() {
            state.asked.get_or_insert_with(|| lost.clone());
            self.changed.notify_all();
        }
        drop(state);
        // Nothing is lost if all have left.
        self.wait_for_end_of(generation).unwrap_or(lost)
    }

    /// Waits for the end of the generation. *Returns* `None` if all have left.
    pub(super) fn wait_for_end(&self) -> Option<Lost> {
        self.wait_for_end_of(self.generation())
    }

    /// Does the same for a generation that may have ended.
    pub(super) fn wait_for_end_of(&self, generation: u64) -> Option<Lost> {
        let mut state = self.state.lock();
        loop {
            if state.generation > generation {
                return state.before.clone();
            }
            match &state.end {
                Some(End::Left) => return None,
                Some(End::Lost(lost)) => return Some(lost.clone()),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Waits until `done`, or until the generation ends.
    pub(super) fn wait_until<T>(&self, mut done: impl FnMut() -> Option<T>) -> Result<T, Lost> {
        let mut state = self.state.lock();
        loop {
            if let Some(value) = done() {
                return Ok(value);
            }
            if let Some(End::Lost(lost)) = &state.end {
                return Err(lost.clone());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits until `done`, across failures and renewals, or until nothing more can happen: a
    /// process is lost, all have left, or this process is ending.
    ///
    /// # Errors
    /// The lost process; `None` if none is lost.
    pub(super) fn wait_through<T>(
        &self,
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T, Option<Lost>> {
        let mut state = self.state.lock();
        loop {
            if let Some(value) = done() {
                return Ok(value);
            }
            let ends = state.end.iter().chain(state.ahead.values());
            match ends.into_iter().find(|end| end.is_final()) {
                Some(End::Lost(lost)) => return Err(Some(lost.clone())),
                Some(End::Left) => return Err(None),
                None => {}
            }
            if state.broken.is_some() || state.closing {
                return Err(state.broken.clone());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits for the end of the generation at most `time`.
    pub(super) fn lost_within(&self, time: Duration) -> Option<Lost> {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while state.end.is_none() {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        drop(state);
        self.lost()
    }

    /// Wakes threads in `wait_until` after a change.
    pub(super) fn notify(&self) {
        // A waiting thread holds the lock between its check and its wait, so it cannot miss this.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Makes the beat report that this process is done, and waits for all.
    pub(super) fn leave(&self) -> Result<(), Lost> {
        self.state.lock().leaving = true;
        self.changed.notify_all();
        self.wait_for_end().map_or(Ok(()), Err)
    }

    /// Begins the next generation.
    ///
    /// # Errors
    /// The last generation ended by a loss.
    pub(super) fn renew(&self) -> Result<(), Lost> {
        let mut state = self.state.lock();
        let lost = match &state.end {
            Some(End::Lost(lost)) if lost.gone => return Err(lost.clone()),
            Some(End::Lost(lost)) => lost.clone(),
            Some(End::Left) | None => return Ok(()),
        };
        state.before = Some(lost);
        state.generation += 1;
        (state.call, state.calls, state.votes) = (None, 0, 0);
        state.end = None;
        state.leaving = false;
        let generation = state.generation;
        let (broken, end) = (state.broken.clone(), state.ahead.remove(&generation));
        drop(state);
        self.changed.notify_all();
        if let Some(end) = end {
            self.end(generation, end.clone());
            if let End::Lost(lost) = end
                && lost.gone
            {
                return Err(lost);
            }
        }
        match broken {
            Some(lost) => {
                self.broken(lost.clone());
                Err(lost)
            }
            None => Ok(()),
        }
    }

    /// Returns the votes ended in this generation: the progress of this process.
    pub(super) fn votes(&self) -> u64 {
        self.state.lock().votes
    }

    /// Counts a vote.
    pub(super) fn voted(&self) {
        self.state.lock().votes += 1;
    }

    /// Begins a call of this process.
    pub(super) fn begin_call(&self, name: &Arc<str>) {
        let mut state = self.state.lock();
        state.calls += 1;
        state.call = Some(Call {
            generation: state.generation,
            number: state.calls,
            at: state.votes,
            name: Arc::clone(name),
        });
    }

    /// Returns the current or last call of this process; `None` if it has made none in this
    /// generation.
    pub(super) fn call(&self) -> Option<Call> {
        self.state.lock().call.clone()
    }

    /// Registers work that an end of the generation aborts. *Returns* its id.
    pub(super) fn register(&self, generation: u64, work: Arc<dyn Abort>) -> u64 {
        let mut state = self.state.lock();
        let id = state.next_work;
        state.next_work += 1;
        if state.end.is_none() && state.generation == generation {
            state.works.insert(id, work);
            return id;
        }
        drop(state);
        work.abort();
        id
    }

    /// Returns a rank whose process is seen to have ended while this generation runs.
    pub(super) fn ended(&self) -> Option<usize> {
        let works: Vec<_> = self.state.lock().works.values().cloned().collect();
        works.iter().find_map(|work| work.ended())
    }

    /// Unregisters finished work.
    pub(super) fn forget(&self, id: u64) {
        let own = self.state.lock().works.remove(&id);
        // Not under the lock: dropping it may take a while.
        drop(own);
    }

    /// Runs `callback` when the generation ends by a failure or a loss; at once if it has.
    pub(super) fn on_abort(&self, callback: Callback) {
        let mut state = self.state.lock();
        let lost = match &state.end {
            None => {
                state.callbacks.push(callback);
                return;
            }
            Some(End::Left) => return,
            Some(End::Lost(lost)) => lost.clone(),
        };
        drop(state);
        callback(&lost);
    }
}
