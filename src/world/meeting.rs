//! How the processes of a world find each other.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant, SystemTime};

use super::keys;
use super::{Words, WorldError};
use crate::torch::Store;

/// How long one try to connect may take, and how long is between two of them.
const TRY: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(10);

/// The connection of a process to the others.
#[derive(Debug)]
pub(super) struct Met {
    /// With the run's prefix.
    pub(super) store: Store,
    /// This host, as the others reach it.
    pub(super) address: IpAddr,
    /// By rank.
    pub(super) hosts: Vec<String>,
    /// Whether this process serves the store.
    pub(super) serves: bool,
}

/// Waits for all processes; `limit` is the longest that this and each later call of the store may
/// take.
pub(super) fn meet(
    words: &Words,
    (master, port): (&str, u16),
    own_host: &str,
    limit: Duration,
) -> Result<Met, WorldError> {
    let serves = words.rank == 0 && !words.launcher_serves;
    let begin = Instant::now();
    let (store, address) = if serves {
        let store = Store::open(master, port, true, limit).map_err(|source| WorldError::Serve {
            host: master.to_owned(),
            port,
            source,
        })?;
        (store, reach(master, port, begin, limit)?)
    } else {
        let address = reach(master, port, begin, limit)?;
        (Store::open(master, port, false, limit)?, address)
    };
    let store = store.below(&keys::prefix(&words.run, words.restarts))?;
    let hosts = gather(&store, words, own_host, begin, limit)?;
    Ok(Met {
        store,
        address,
        hosts,
        serves,
    })
}

/// The address of this host from which the store is reached: which of the host's networks is
/// that of the others need not be said. Tries until the store is there.
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

/// Says where this process is, and hears where the others are.
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
    // The time tells two processes of one number in different containers apart.
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
    let keys: Vec<String> = (0..words.size).map(keys::host).collect();
    if !store.wait(&keys, limit.saturating_sub(begin.elapsed()).max(BETWEEN))? {
        let mut ranks = Vec::new();
        for (rank, key) in keys.iter().enumerate() {
            if !store.has(std::slice::from_ref(key))? {
                ranks.push(rank);
            }
        }
        return Err(WorldError::Absent {
            ranks,
            size: words.size,
            after: limit,
        });
    }
    let host = |key: &String| {
        let name = store.get(key)?;
        let name = String::from_utf8_lossy(&name);
        Ok(name.split('\n').next().unwrap_or_default().to_owned())
    };
    keys.iter().map(host).collect()
}
