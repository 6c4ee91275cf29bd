//! The processes of a run: this process's rank, transfers between processes, and failures, of which
//! all learn.
//!
//! A launcher (`gpipe-rs launch`, torchrun, `srun`, `mpirun`) starts the same program several times
//! and gives each process its rank by [`Words`] in its environment. The processes meet in a
//! *store*, a small key-value server in rank 0 or in the launcher, and connect to each other. Store
//! and connections are those of libtorch (c10d with gloo), so that nothing else needs to be
//! installed.
//!
//! A process that fails reports it by [`World::abort`]; one that is killed is noticed by its broken
//! connections within milliseconds, and one that hangs or is cut off by its silence, after the
//! [patience](Times::patience). Either way all others get the same [`Lost`] from everything that
//! they wait for.
//!
//! A process without a launcher is a world of one, without store, thread or socket.
//!
//! Network traffic is neither encrypted nor authenticated: for private networks only.

mod carrier;
mod control;
mod error;
mod exit;
mod fd_limit;
mod group;
mod heartbeat;
mod keys;
mod launcher_env;
mod lazy;
mod local;
mod lost;
mod meeting;
mod nodelist;
mod watch;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::fail_point::fail_point;
use crate::{ProcessGroup, TorchError};
pub use control::Control;
use exit::Ending;
use group::{Places, Retired};
use heartbeat::Beat;
use lost::{End, short};
use meeting::Met;
pub use watch::Held;
use watch::Watch;

pub use carrier::gather_once;
use carrier::tell_all;
pub use carrier::{Parcel, Payload, WorldCarrier};
pub use error::WorldError;
pub use group::{Group, Transfer};
pub use launcher_env::{Launcher, Words, WordsError};
pub use lost::{Lost, RESTART_MAY_HELP};
pub use nodelist::NodelistError;

/// Set by `gpipe-rs launch` in the processes that it starts, to its own process id.
pub(crate) const LAUNCHED: &str = "GPIPE_LAUNCHED_BY";

/// Time limits of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How long a process may be silent before it is lost. By default 10 s.
    pub patience: Duration,
    /// How long all processes may take to meet. By default 300 s.
    pub meeting: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(10),
            meeting: Duration::from_mins(5),
        }
    }
}

/// This process among those of its run.
///
/// When dropped without [`leave`](Self::leave), it tells the others that this process has ended. A
/// program that calls [`std::process::exit`] must drop it first: the store may be in this process.
#[derive(Debug)]
pub struct World {
    words: Words,
    host: String,
    watch: Arc<Watch>,
    places: Arc<Places>,
    /// None for a world of one.
    link: Option<Link>,
    groups: AtomicU64,
    /// Groups that this process no longer uses, while another one may still do so.
    retired: Arc<Retired>,
    /// Set at the first use.
    control: Mutex<Option<Arc<Control>>>,
    ending: Arc<Ending>,
}

#[derive(Debug)]
struct Link {
    met: Met,
    server: Lost,
    times: Times,
}

impl World {
    /// Joins the world that the environment describes.
    ///
    /// # Errors
    /// Variables are missing or contradict each other, or the processes do not meet.
    pub fn from_env() -> Result<Self, WorldError> {
        Self::join(Words::from_env()?)
    }

    /// Joins a world; returns once all its processes have.
    ///
    /// # Errors
    /// The processes do not meet.
    pub fn join(words: Words) -> Result<Self, WorldError> {
        Self::join_with(words, Times::default())
    }

    /// Joins like [`join`](Self::join), with other time limits, which must be the same in all
    /// processes.
    ///
    /// # Errors
    /// The processes do not meet.
    pub fn join_with(words: Words, times: Times) -> Result<Self, WorldError> {
        let host = host_name();
        let master = words.master.clone().filter(|_| words.size > 1);
        let Some((master, port)) = master else {
            let places = Places {
                rank: 0,
                hosts: vec![host.clone()],
            };
            return Ok(Self::new(words, host, places, None));
        };
        let met = meeting::meet(&words, (&master, port), &host, times.meeting)?;
        let places = Places {
            rank: words.rank,
            hosts: met.hosts.clone(),
        };
        let server = if words.launcher_serves {
            Lost {
                rank: None,
                host: format!("{master}:{port}"),
                why: String::new(),
                gone: true,
                at: 0,
                silent: false,
            }
        } else {
            places.gone(0, String::new())
        };
        let link = Link { met, server, times };
        let world = Self::new(words, host, places, Some(link));
        world.start()?;
        Ok(world)
    }

    fn new(words: Words, host: String, places: Places, link: Option<Link>) -> Self {
        Self {
            words,
            host,
            watch: Arc::new(Watch::new()),
            places: Arc::new(places),
            link,
            groups: AtomicU64::new(0),
            retired: Arc::default(),
            control: Mutex::new(None),
            ending: Arc::default(),
        }
    }

    /// Starts the threads that watch the others.
    fn start(&self) -> Result<(), WorldError> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        let patience = link.times.patience;
        link.met.look(patience)?;
        let (store, server) = (link.met.store.another()?, link.server.clone());
        let beat = Beat {
            store: link.met.store.another()?,
            places: Arc::clone(&self.places),
            server: server.clone(),
            patience,
        };
        self.connected("world-beat", move |watch| beat.run(watch))?;
        let own = server.clone();
        self.connected("world-watcher", move |watch| {
            watcher::watch(watch, &store, &own);
        })?;
        let watch = Arc::clone(&self.watch);
        let clock = move || watcher::clock(&watch, &server, patience);
        spawned("world-clock", clock).map_err(WorldError::Thread)
    }

    /// Starts a thread that has a connection to the store.
    fn connected(
        &self,
        name: &str,
        body: impl FnOnce(&Arc<Watch>) + Send + 'static,
    ) -> Result<(), WorldError> {
        self.watch.connected(true);
        let watch = Arc::clone(&self.watch);
        let started = spawned(name, move || {
            body_then(body, &watch);
        });
        started.map_err(|error| {
            self.watch.connected(false);
            WorldError::Thread(error)
        })
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.words.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.words.size
    }

    /// Returns the rank of this process among those on this host, from 0.
    pub fn local_rank(&self) -> usize {
        self.words.local_rank
    }

    /// Returns the number of processes on this host.
    pub fn local_size(&self) -> usize {
        let here = || self.places.hosts.iter().filter(|host| **host == self.host);
        self.words.local_size.unwrap_or_else(|| here().count())
    }

    /// Returns the name of this host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns how often the launcher has restarted the processes.
    pub fn restarts(&self) -> usize {
        self.words.restarts
    }

    /// Returns the launcher's description of this process.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Returns the generation, from 0: see [`renew`](Self::renew).
    pub fn generation(&self) -> u64 {
        self.watch.generation()
    }

    /// Returns the failure or loss since which all transfers fail; `None` while all is well.
    pub fn lost(&self) -> Option<Lost> {
        self.watch.lost()
    }

    /// Tells all processes that this one has failed, and frees every thread that waits for a
    /// transfer.
    ///
    /// *Returns* the failure known to all: this one, or an earlier one of another process.
    pub fn abort(&self, why: &str) -> Lost {
        self.abort_at(0, why)
    }

    /// Does the same for a process with this progress.
    fn abort_at(&self, at: u64, why: &str) -> Lost {
        self.abort_in(self.generation(), at, why)
    }

    /// Does the same in a generation that may have ended.
    fn abort_in(&self, generation: u64, at: u64, why: &str) -> Lost {
        let lost = Lost {
            gone: false,
            at,
            ..self.places.gone(self.rank(), short(why))
        };
        self.tell(generation, lost)
    }

    /// Tells all processes that this one cannot continue, which ends the run.
    ///
    /// *Returns* the failure known to all: this one, or an earlier one of another process.
    pub fn lose(&self, why: &str) -> Lost {
        let lost = self.places.gone(self.rank(), short(why));
        self.tell(self.generation(), lost)
    }

    fn tell(&self, generation: u64, lost: Lost) -> Lost {
        if self.link.is_none() {
            let end = End::Lost(lost.clone());
            self.watch.end(generation, end);
            return self.lost().unwrap_or(lost);
        }
        self.watch.ask_in(generation, lost)
    }

    /// Runs `callback` once, on any thread, as soon as a process has failed or is lost; at once if
    /// one already is. It must not wait for anything.
    pub fn on_abort(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        self.watch.on_abort(Box::new(callback));
    }

    /// Connects all processes with each other: all must call it, in the same order. Returns when
    /// all have.
    ///
    /// # Errors
    /// A process has failed or is lost.
    ///
    /// # Panics
    /// The world has only one process.
    pub fn group(&self) -> Result<Group, Lost> {
        let link = self.link.as_ref();
        let link = link.expect("a world of one process has no group");
        let generation = self.generation();
        let number = self.groups.fetch_add(1, Ordering::Relaxed);
        let made: Arc<Mutex<Option<Result<ProcessGroup, TorchError>>>> = Arc::default();
        // gloo waits for the others where no abort reaches it: a separate thread does that.
        let (watch, place) = (Arc::clone(&self.watch), Arc::clone(&made));
        let (rank, size, address) = (self.rank(), self.size(), link.met.address);
        let limit = link.times.meeting;
        // A network set by the user takes precedence.
        let said = std::env::var_os("GLOO_SOCKET_IFNAME").is_some();
        let address = (!said).then_some(address);
        // A separate connection: gloo waits at it.
        let store = link.met.store.another();
        let store = store.and_then(|store| store.below(&keys::group(generation, number)));
        let store = store.map_err(|error| self.store_failed(&error))?;
        let started = spawned("world-group", move || {
            let group = ProcessGroup::join(&store, rank, size, address, limit);
            *place.lock() = Some(group);
            watch.notify();
        });
        if let Err(error) = started {
            return Err(self.abort(&format!("no thread for connections: {error}")));
        }
        match self.watch.wait_until(|| made.lock().take())? {
            Ok(own) => {
                // All have come here, so that none uses earlier groups any more.
                self.retired.clear();
                let pairs = lazy::is_asked_for().then(|| Arc::new(lazy::Pairs::new(size)));
                let group = |own, local| Group {
                    own,
                    generation,
                    watch: Arc::clone(&self.watch),
                    places: Arc::clone(&self.places),
                    local,
                    pairs: pairs.clone(),
                    retired: Arc::clone(&self.retired),
                };
                let own = Arc::new(own);
                let plain = Arc::new(group(Arc::clone(&own), None));
                let place = (rank, &self.places.hosts[..]);
                let gather = |own: &[u8]| tell_all(self, &plain, own);
                let local = local::connect(place, (&self.watch, generation), gather)?;
                Ok(group(own, local))
            }
            // Most likely because another process ended, which will be noticed.
            Err(error) => Err(self
                .watch
                .lost_within(link.times.patience * 2)
                .unwrap_or_else(|| {
                    self.abort(&format!(
                        "no connection to the others: {}",
                        keys::said(&error)
                    ))
                })),
        }
    }

    /// Returns the channel for short messages over the store; `None` for a world of one. The first
    /// call starts its threads.
    ///
    /// # Errors
    /// A process is lost, or the system provides no thread.
    pub fn control(&self) -> Result<Option<Arc<Control>>, Lost> {
        let Some(link) = &self.link else {
            return Ok(None);
        };
        let mut control = self.control.lock();
        if let Some(control) = &*control {
            return Ok(Some(Arc::clone(control)));
        }
        let (own, parts) = Control::new(&self.watch, &self.places, &link.server);
        for (name, body) in parts {
            let store = link.met.store.below(keys::CONTROL);
            let store = store.map_err(|error| self.store_failed(&error))?;
            let started = self.connected(name, move |_| body(store));
            started.map_err(|error| self.lose(&error.to_string()))?;
        }
        Ok(Some(Arc::clone(control.insert(own))))
    }

    fn store_failed(&self, error: &TorchError) -> Lost {
        let server = self.link.as_ref().map(|link| link.server.clone());
        let server = server.unwrap_or_else(|| self.places.gone(0, String::new()));
        self.watch
            .broken(watcher::with(&server, &keys::said(error)));
        self.watch.wait_for_end().unwrap_or(server)
    }

    /// Continues after a failure that all processes know of and have survived: begins the world's
    /// next generation, with new groups. All must call it. Does nothing if nothing has failed.
    ///
    /// # Errors
    /// A process is lost: the run is over.
    pub fn renew(&self) -> Result<(), Lost> {
        self.groups.store(0, Ordering::Relaxed);
        self.watch.renew()
    }

    /// Reports that this process is done, and waits until all are, so that none closes a connection
    /// that another still uses. Drop pipelines and groups first.
    ///
    /// # Errors
    /// A process has failed or is lost.
    pub fn leave(self) -> Result<(), Lost> {
        fail_point("leave");
        match &self.link {
            Some(_) => self.watch.leave(),
            None => self.lost().map_or(Ok(()), Err),
        }
    }
}

fn body_then(body: impl FnOnce(&Arc<Watch>), watch: &Arc<Watch>) {
    body(watch);
    watch.connected(false);
}

fn spawned(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(body).map(drop)
}

/// Returns the name of this host.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

#[cfg(any(test, feature = "testing"))]
impl World {
    /// How many keys the store has.
    ///
    /// # Panics
    /// This is a world of one, or the store does not answer.
    #[allow(clippy::unwrap_used)]
    pub fn keys(&self) -> i64 {
        let link = self.link.as_ref().unwrap();
        link.met.store.count().unwrap()
    }
}

#[cfg(test)]
mod tests;
