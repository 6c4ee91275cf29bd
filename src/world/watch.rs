//! What one process knows of its world's state, and what an end of it frees.
//!
//! The world goes through *generations*. In each of them the processes make groups and work
//! together until the generation ends: all have left it, or somebody failed. How it ended is one
//! value in the store, which is set once: whoever fails first sets it, and everybody says the
//! same. Three threads of each process see to it:
//!
//! - the [watcher](super::watcher) waits for that value;
//! - the [beat](super::beat) counts up this process's own number, looks whether that of the next
//!   rank does, and sets the value when this process has failed or the next one is silent;
//! - the [clock](super::clock) ends the generation here, and here alone, when the store itself
//!   has been silent for too long.
//!
//! Whoever ends a generation aborts all transfers, which frees the threads that wait for them,
//! and runs what was registered by `on_abort`. No thread but these three ever waits for the
//! store: what others wait for is this state.
//!
//! After a failure that was told (`gone: false`) all processes are still there and the beats go
//! on; `renew` begins the next generation, with new groups under new keys. After a loss there is
//! none. A process that notices a loss when its generation has already ended by a failure sets
//! the value of the next one. The watcher waits for that at once, so that what goes on in the
//! background while nobody has renewed the world yet ([control](super::control)) hears of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::lost::{End, Lost};
use crate::torch::Work;

mod hold;
mod threads;

pub(crate) use hold::Held;

/// What an end of the generation frees.
pub(super) trait Abort: Send + Sync {
    fn abort(&self);

    /// A rank on the other side whose process has ended, where that can be seen.
    fn ended(&self) -> Option<usize> {
        None
    }
}

impl Abort for Work {
    fn abort(&self) {
        // One that is over already has nobody to free.
        let _ = Self::abort(self);
    }
}

type Callback = Box<dyn FnOnce(&Lost) + Send>;

/// The state, and who waits for it to change.
pub(super) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    generation: u64,
    /// How this generation ended.
    end: Option<End>,
    /// How the one before ended.
    before: Option<Lost>,
    /// How those ended that this process has not begun yet.
    ahead: BTreeMap<u64, End>,
    /// What the beat is to set.
    asked: Option<Lost>,
    /// Whether the beat is to say that this process is done.
    leaving: bool,
    /// The store is gone: so is every later generation.
    broken: Option<Lost>,
    /// When the store answered last.
    answered: Instant,
    /// Whether it ever has.
    has_answered: bool,
    /// No thread is needed any more.
    closing: bool,
    /// Threads that have a connection to the store.
    connected: usize,
    /// What is to be done to its end, also where somebody has failed.
    held: usize,
    works: HashMap<u64, Arc<dyn Abort>>,
    /// The call that this process is in, or was in last.
    call: Option<Call>,
    /// Calls that have begun in this generation.
    calls: u64,
    /// Votes that have ended in this generation.
    votes: u64,
    next_work: u64,
    callbacks: Vec<Callback>,
}

/// A call that all processes make together: the number of a call of theirs says which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) generation: u64,
    pub(super) number: u64,
    /// See [`Lost::at`].
    pub(super) at: u64,
    pub(super) name: Arc<str>,
}

/// What the beat is to do next.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) generation: u64,
    /// Set this as the generation's end.
    pub(super) abort: Option<Lost>,
    /// Say that this process is done.
    pub(super) leave: bool,
    /// Say farewell: nothing comes after this.
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

    /// How the generation ended; none where it goes on.
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
        // Whoever is told next finds the transfers free.
        self.changed.notify_all();
        if let End::Lost(lost) = end {
            for callback in callbacks {
                callback(&lost);
            }
        }
    }

    /// The store is gone, and with it this generation and all later ones.
    pub(super) fn broken(&self, lost: Lost) {
        let mut state = self.state.lock();
        state.broken.get_or_insert_with(|| lost.clone());
        let generation = state.generation;
        drop(state);
        self.end(generation, End::Lost(lost));
    }

    /// Has the beat end a generation, which may have ended, for all, and waits for what all are told.
    ///
    /// *Returns* who was first: this one, or another.
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
        // Nothing is lost where all have left.
        self.wait_for_end_of(generation).unwrap_or(lost)
    }

    /// Waits for the end of the generation. *Returns* none where all have left.
    pub(super) fn wait_for_end(&self) -> Option<Lost> {
        self.wait_for_end_of(self.generation())
    }

    /// The same for a generation that may have ended.
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

    /// Waits until `done`, through generations that end by a failure and are followed by others,
    /// or until nothing can come any more: somebody is lost, all have left, or this process is
    /// at its end.
    ///
    /// # Errors
    /// Who is lost; none where nobody is.
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

    /// Waits for the end of the generation for so long at most.
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

    /// Something that `wait_until` looks at has changed.
    pub(super) fn notify(&self) {
        // Between a look and a wait nobody can be: whoever waits has the lock until then.
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Has the beat say that this process is done, and waits for all.
    pub(super) fn leave(&self) -> Result<(), Lost> {
        self.state.lock().leaving = true;
        self.changed.notify_all();
        self.wait_for_end().map_or(Ok(()), Err)
    }

    /// Begins the next generation.
    ///
    /// # Errors
    /// The last one ended by a loss.
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

    /// Votes that have ended in this generation: how far this process is.
    pub(super) fn votes(&self) -> u64 {
        self.state.lock().votes
    }

    /// A vote has ended.
    pub(super) fn voted(&self) {
        self.state.lock().votes += 1;
    }

    /// This process begins a call.
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

    /// The call that this process is in, or was in last; none where it has made none in this
    /// generation.
    pub(super) fn call(&self) -> Option<Call> {
        self.state.lock().call.clone()
    }

    /// Has an end of the generation abort this work. *Returns* what it is known by.
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

    /// A rank whose process is seen to have ended while this generation goes on.
    pub(super) fn ended(&self) -> Option<usize> {
        let works: Vec<_> = self.state.lock().works.values().cloned().collect();
        works.iter().find_map(|work| work.ended())
    }

    /// The work is over.
    pub(super) fn forget(&self, id: u64) {
        let own = self.state.lock().works.remove(&id);
        // Not under the lock: the end of a work may take a while.
        drop(own);
    }

    /// Runs this when the generation ends by a failure or a loss; at once where it has.
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
