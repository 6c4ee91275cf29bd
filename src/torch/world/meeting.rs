//! Meeting of the processes of a world.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use super::{Words, WorldError, fd_limit, keys, spawned};
use crate::Store;

/// Time limit of one attempt to connect, and the pause between two attempts.
const TRY: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(10);
/// How long the peer of a connection may be silent, even a store on a busy host.
const ANSWER: Duration = Duration::from_mins(1);

/// Connection of a process to the others.
#[derive(Debug)]
pub(super) struct Met {
    /// Store with the run's prefix.
    pub(super) store: Store,
    /// Address of this host, as the others reach it.
    pub(super) address: IpAddr,
    /// Host of each rank.
    pub(super) hosts: Vec<String>,
    /// Whether this process serves the store.
    pub(super) serves: bool,
    /// Address of the store.
    server: (String, u16),
}

impl Met {
    /// Checks that the store is still there. Connecting to one that has gone since the meeting
    /// would be retried for as long as a meeting may take.
    pub(super) fn look(&self, patience: Duration) -> Result<(), WorldError> {
        let (host, port) = &self.server;
        reach(host, *port, Instant::now(), patience).map(drop)
    }
}

/// Waits for all processes; `limit` is the time limit of this and of each later call of the store.
pub(super) fn meet(
    words: &Words,
    (master, port): (&str, u16),
    own_host: &str,
    limit: Duration,
) -> Result<Met, WorldError> {
    let serves = words.rank == 0 && !words.launcher_serves;
    let begin = Instant::now();
    fd_limit::allow(words.size, serves);
    let (store, address) = if serves {
        let store = Store::open(master, port, true, limit).map_err(|source| WorldError::Serve {
            host: master.to_owned(),
            port,
            source,
        })?;
        (store, reach(master, port, begin, limit)?)
    } else {
        let address = reach(master, port, begin, limit)?;
        (open(master, port, limit)?, address)
    };
    let store = store.below(&keys::prefix(&words.run, words.restarts))?;
    let hosts = gather(&store, words, own_host, begin, limit)?;
    Ok(Met {
        store,
        address,
        hosts,
        serves,
        server: (master.to_owned(), port),
    })
}

/// Opens the store of another process. If something else answers at its port, libtorch waits for
/// its reply forever: that thread is abandoned.
fn open(host: &str, port: u16, limit: Duration) -> Result<Store, WorldError> {
    let none = |why: String| WorldError::NoStore {
        host: host.to_owned(),
        port,
        why,
    };
    let (told, heard) = mpsc::channel();
    let server = host.to_owned();
    spawned("world-connect", move || {
        // After a timeout nobody listens any more.
        let _ = told.send(Store::open(&server, port, false, limit));
    })
    .map_err(WorldError::Thread)?;
    let patience = ANSWER.min(limit);
    match heard.recv_timeout(patience) {
        Ok(opened) => opened.map_err(|error| none(error.to_string())),
        Err(_) => Err(none(format!(
            "it takes connections, and says nothing for {} s",
            patience.as_secs_f64()
        ))),
    }
}

/// Returns the address of this host from which the store is reached, which selects the network
/// shared with the others. Retries until the store is there.
fn reach(host: &str, port: u16, begin: Instant, limit: Duration) -> Result<IpAddr, WorldError> {
    loop {
        let why = match connect(host, port) {
            Ok(own) => return Ok(own.ip().to_canonical()),
            Err(error) => error.to_string(),
        };
        if begin.elapsed() > limit {
            return Err(WorldError::Unreachable {
                host: host.to_owned(),
                port,
                after: limit,
                why,
            });
        }
        std::thread::sleep(BETWEEN);
    }
}

fn connect(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    let mut last = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TRY).and_then(|stream| stream.local_addr()) {
            Ok(own) => return Ok(own),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the name has no address")))
}

/// Publishes where this process is, and learns where the others are.
///
/// *Complexity*: a few requests to the store per process, and one more per process for rank 0.
fn gather(
    store: &Store,
    words: &Words,
    own_host: &str,
    begin: Instant,
    limit: Duration,
) -> Result<Vec<String>, WorldError> {
    let own = format!(
        "{} processes of gpipe-rs {}",
        words.size,
        env!("CARGO_PKG_VERSION")
    );
    let first = store.set_first(keys::WORLD, own.as_bytes())?;
    if first != own.as_bytes() {
        let other = String::from_utf8_lossy(&first).into_owned();
        return Err(WorldError::Differ { own, other });
    }
    // The time distinguishes processes with the same id in different containers.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let name = format!("{own_host}\nprocess {}\n{now}", std::process::id());
    let there = store.set_first(&keys::host(words.rank), name.as_bytes())?;
    if there != name.as_bytes() {
        let there = String::from_utf8_lossy(&there);
        let mut there = there.lines();
        let host = there.next().unwrap_or_default();
        let process = there.next().unwrap_or("a process");
        return Err(WorldError::Taken {
            rank: words.rank,
            other: format!("{process} on {host}"),
        });
    }
    let left = limit.saturating_sub(begin.elapsed()).max(BETWEEN);
    let hosts = if words.rank == 0 {
        told_by_all(store, words.size, left)?
    } else {
        told_by_first(store, left)?
    };
    match hosts {
        Some(hosts) => Ok(hosts),
        None => Err(WorldError::Absent {
            ranks: absent(store, words.size)?,
            size: words.size,
            after: limit,
        }),
    }
}

/// Rank 0 collects the hosts of all ranks and publishes them: if each rank asked for each, the
/// store would get a request for every pair. `None` if a rank does not come in time.
fn told_by_all(
    store: &Store,
    size: usize,
    left: Duration,
) -> Result<Option<Vec<String>>, WorldError> {
    let keys: Vec<String> = (0..size).map(keys::host).collect();
    if !store.wait(&keys, left)? {
        return Ok(None);
    }
    let host = |key: &String| {
        let name = store.get(key)?;
        let name = String::from_utf8_lossy(&name);
        Ok(name.split('\n').next().unwrap_or_default().to_owned())
    };
    let hosts: Vec<String> = keys.iter().map(host).collect::<Result<_, WorldError>>()?;
    store.set(keys::HOSTS, hosts.join("\n").as_bytes())?;
    Ok(Some(hosts))
}

fn told_by_first(store: &Store, left: Duration) -> Result<Option<Vec<String>>, WorldError> {
    if !store.wait(&[keys::HOSTS.to_owned()], left)? {
        return Ok(None);
    }
    let hosts = store.get(keys::HOSTS)?;
    let hosts = String::from_utf8_lossy(&hosts);
    Ok(Some(hosts.split('\n').map(str::to_owned).collect()))
}

/// Returns the missing ranks; rank 0 if all have come, since it has not published the hosts.
fn absent(store: &Store, size: usize) -> Result<Vec<usize>, WorldError> {
    let mut ranks = Vec::new();
    for rank in 0..size {
        if !store.has(&[keys::host(rank)])? {
            ranks.push(rank);
        }
    }
    if ranks.is_empty() {
        ranks.push(0);
    }
    Ok(ranks)
}
