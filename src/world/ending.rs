//! The end of a process whose world has ended before its work was done.
//!
//! What is under way then may take long to be left: a layer that computes for seconds, a shard
//! that is being written, a connection that is being made. Nobody is to wait for it: a program
//! that asks for it ([`World::exit_with_others`]) has so long to end by itself, and is ended then.
//! Only the process that serves the store stays for a moment more, in which the others hear what
//! has happened.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::lost::{End, Lost};
use super::watch::Watch;
use super::{World, WorldError, keys, spawned};

/// What a process has to say to the store, and the one that serves it to hear, takes no longer
/// than this where all have left the world.
const AT_MOST: Duration = Duration::from_secs(2);
/// The same where somebody has failed or is lost.
const AFTER_A_LOSS: Duration = Duration::from_millis(500);
/// The same where somebody has been silent: others may be cut off with that one, and nobody hears
/// of them any more.
const IN_SILENCE: Duration = Duration::from_millis(200);
/// So long a sentence may take to be written.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How often the process is asked whether it has still something to write to the end.
const LOOK: Duration = Duration::from_millis(10);

/// What there is to say at the end of this process.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Who failed or was lost first.
    first: OnceLock<Lost>,
    /// Whether somebody says why, and the exit code that this has.
    said: AtomicBool,
    code: AtomicU8,
}

impl Ending {
    /// Whether nobody says yet why this process ends; it ends with this code then.
    fn say(&self, code: u8) -> bool {
        let is_first = !self.said.swap(true, Ordering::SeqCst);
        if is_first {
            self.code.store(code, Ordering::SeqCst);
        }
        is_first
    }

    /// See [`World::ends`].
    pub(crate) fn ends(&self, code: u8) {
        if !self.say(code) {
            loop {
                thread::park();
            }
        }
    }
}

impl World {
    /// For a program that does not go on after a failure: has this process end with the others,
    /// even if its threads are not done. If it still is there so long after it has heard that
    /// somebody failed or is lost, `say` is given the sentence that all have, and the process exits
    /// with [`Lost::exit_code`], without unwinding. A checkpoint that is being written after a
    /// failure that all have survived is written to its end first.
    ///
    /// Before such a program says itself why it ends, it calls [`ends`](Self::ends).
    ///
    /// # Errors
    /// [`WorldError::Thread`]: the system gives no thread.
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

    /// Who failed or was lost first since [`exit_with_others`](Self::exit_with_others) was called:
    /// what comes after it mostly comes of it.
    pub fn lost_first(&self) -> Option<&Lost> {
        self.ending.first.get()
    }

    /// This process ends now, with this exit code, and is about to say why. Where
    /// [`exit_with_others`](Self::exit_with_others) has begun to do so, this does not return.
    pub fn ends(&self, code: u8) {
        self.ending.ends(code);
    }

    /// The same for when this is gone.
    pub(crate) fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.ending)
    }

    /// Ends this process with this exit code, when the others have heard that it does. Nothing is
    /// unwound, and libtorch is not taken down, which takes a while: what is to be written must be
    /// written.
    pub fn exit(self: Arc<Self>, code: u8) -> ! {
        self.close();
        signal_hook::low_level::exit(code.into())
    }

    /// Says farewell to the others, and where the store is here, stays until they have heard.
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
        // A network that is cut must not keep the process from its end.
        let until = Instant::now() + link.times.patience.min(at_most);
        let farewell = self
            .places
            .gone(self.rank(), "its process has ended".to_owned());
        let ended = self.watch.close(farewell.clone(), until);
        // Transfers that are still under way: nobody watches over them any more.
        self.watch.end(self.generation(), End::Lost(farewell));
        if ended && link.met.serves {
            // Whoever has not heard yet hears of it here, and nowhere else.
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
        // Else all have left the world.
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

    /// So long the process may end by itself.
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

/// Where nobody reads what is said, nobody waits for it.
fn said(lost: &Lost, say: impl FnOnce(&Lost) + Send + 'static) {
    let (done, over) = mpsc::channel::<()>();
    let lost = lost.clone();
    let saying = move || {
        say(&lost);
        drop(done);
    };
    if spawned("world-said", saying).is_ok() {
        // It is closed at the end, and nothing is sent.
        let _ = over.recv_timeout(LAST_WORDS);
    }
}
