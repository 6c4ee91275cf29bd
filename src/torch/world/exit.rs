//! Ending a process whose world has ended before its work was done.
//!
//! Running work may take long to leave: a layer that computes for seconds, a shard being written, a
//! connection being made. No process should wait for it: a program that asks for it
//! ([`World::exit_with_others`]) has a grace period to end by itself, and is ended after that. Only
//! the process that serves the store stays a moment longer, in which the others learn what
//! happened.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::lost::{End, Lost};
use super::watch::Watch;
use super::{World, WorldError, keys, spawned};

/// Time limit for the last messages to and from the store after all have left the world.
const AT_MOST: Duration = Duration::from_secs(2);
/// The same after a failure or a loss.
const AFTER_A_LOSS: Duration = Duration::from_millis(500);
/// The same after a silence: others may be cut off with the silent process and unreachable.
const IN_SILENCE: Duration = Duration::from_millis(200);
/// Time limit for printing the last sentence.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How often the process is asked whether it must still finish writing.
const LOOK: Duration = Duration::from_millis(10);

/// State of the end of this process.
#[derive(Debug, Default)]
pub struct Ending {
    /// The first failure or loss.
    first: OnceLock<Lost>,
    /// Whether a thread already reports the end of this process.
    said: AtomicBool,
    code: AtomicU8,
}

impl Ending {
    /// Claims the report of the end with this exit code. *Returns* whether no other thread had
    /// claimed it.
    fn say(&self, code: u8) -> bool {
        let is_first = !self.said.swap(true, Ordering::SeqCst);
        if is_first {
            self.code.store(code, Ordering::SeqCst);
        }
        is_first
    }

    /// See [`World::ends`].
    pub fn ends(&self, code: u8) {
        if !self.say(code) {
            loop {
                thread::park();
            }
        }
    }
}

impl World {
    /// Makes this process end with the others, even if its threads are not done; for a program that
    /// does not recover from a failure. If the process still runs a grace period after it has
    /// learnt of a failure or loss, `say` is called with the common error, and the process exits
    /// with [`Lost::exit_code`], without unwinding. A checkpoint being written after a failure that
    /// all have survived is finished first.
    ///
    /// Before such a program reports its own end, it calls [`ends`](Self::ends).
    ///
    /// # Errors
    /// [`WorldError::Thread`]: the system provides no thread.
    pub fn exit_with_others(
        self: &Arc<Self>,
        grace: Duration,
        say: impl FnOnce(&Lost) + Send + 'static,
    ) -> Result<(), WorldError> {
        let (told, heard) = mpsc::channel();
        let ending = Arc::clone(&self.ending);
        self.on_abort(move |lost| {
            let _ = ending.first.set(lost.clone());
            // The thread waits for it.
            let _ = told.send(lost.clone());
        });
        let last = Last {
            world: Arc::downgrade(self),
            watch: Arc::clone(&self.watch),
            ending: Arc::clone(&self.ending),
            grace,
        };
        spawned("world-end", move || last.run(&heard, say)).map_err(WorldError::Thread)
    }

    /// Returns the first failure or loss since [`exit_with_others`](Self::exit_with_others) was
    /// called: later ones are mostly consequences.
    pub fn lost_first(&self) -> Option<&Lost> {
        self.ending.first.get()
    }

    /// Announces that this process ends now, with this exit code, and is about to report why. If
    /// [`exit_with_others`](Self::exit_with_others) has begun to end it, this does not return.
    pub fn ends(&self, code: u8) {
        self.ending.ends(code);
    }

    /// Returns a handle for use after the world is dropped.
    pub fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.ending)
    }

    /// Ends this process with this exit code, after the others have been told. Does not unwind or
    /// shut down libtorch, which takes a while: all output must have been written.
    pub fn exit(self: Arc<Self>, code: u8) -> ! {
        self.close();
        signal_hook::low_level::exit(code.into())
    }

    /// Says farewell to the others; if the store is here, stays until they have read it.
    pub(super) fn close(&self) {
        let Some(link) = &self.link else {
            return;
        };
        if let Some(control) = self.control.lock().take() {
            control.close();
        }
        let lost = self.lost();
        let at_most = match &lost {
            None => AT_MOST,
            Some(lost) if lost.silent => IN_SILENCE,
            Some(_) => AFTER_A_LOSS,
        };
        // A broken network must not keep the process from ending.
        let until = Instant::now() + link.times.patience.min(at_most);
        let farewell = self
            .places
            .gone(self.rank(), "its process has ended".to_owned());
        let ended = self.watch.close(farewell.clone(), until);
        // Frees transfers in progress, which nothing watches any more.
        self.watch.end(self.generation(), End::Lost(farewell));
        if ended && link.met.serves {
            // Processes that do not know yet learn of it only from this store.
            let gone = lost.filter(|lost| lost.gone).and_then(|lost| lost.rank);
            let others = (1..self.size()).filter(|rank| Some(*rank) != gone);
            let keys: Vec<String> = others.map(keys::farewell).collect();
            let left = until.saturating_duration_since(Instant::now());
            let _ = keys.is_empty() || link.met.store.wait(&keys, left).unwrap_or(false);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread that ends the process.
struct Last {
    world: Weak<World>,
    watch: Arc<Watch>,
    ending: Arc<Ending>,
    grace: Duration,
}

impl Last {
    fn run(self, heard: &Receiver<Lost>, say: impl FnOnce(&Lost) + Send + 'static) {
        // Otherwise all have left the world.
        let Ok(lost) = heard.recv() else {
            return;
        };
        self.wait();
        if self.ending.say(lost.exit_code()) {
            said(&lost, say);
        } else {
            thread::sleep(LAST_WORDS);
        }
        if let Some(world) = self.world.upgrade() {
            world.close();
        }
        let code = self.ending.code.load(Ordering::SeqCst);
        signal_hook::low_level::exit(code.into())
    }

    /// Waits for the process to end by itself.
    fn wait(&self) {
        let mut until = Instant::now() + self.grace;
        while Instant::now() < until {
            thread::sleep(LOOK);
            if self.watch.holds() {
                until = Instant::now() + self.grace;
            }
        }
    }
}

/// Prints the sentence without waiting long, as nobody may read it.
fn said(lost: &Lost, say: impl FnOnce(&Lost) + Send + 'static) {
    let (done, over) = mpsc::channel::<()>();
    let lost = lost.clone();
    let saying = move || {
        say(&lost);
        drop(done);
    };
    if spawned("world-said", saying).is_ok() {
        // The channel is closed at the end; nothing is sent.
        let _ = over.recv_timeout(LAST_WORDS);
    }
}
