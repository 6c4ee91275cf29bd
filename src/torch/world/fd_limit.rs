//! Limit of open connections of a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files and connections of a process besides those of its world.
const OWN: usize = 512;
/// Groups with open connections at a time: the current, the next and a retired one.
const GROUPS: usize = 3;
/// Connections of each process to the store, and one being made.
const TO_STORE: usize = 8;

/// Raises the limit of open files to the connections that a world of this size needs, as far as
/// permitted: each process has one to every other in each group, and the one that serves the store
/// several from every process. Shells allow 1,024 by default.
pub(super) fn allow(size: usize, serves: bool) {
    let now = getrlimit(Resource::Nofile);
    let wanted = wanted(size, serves);
    let (Some(current), most) = (now.current, now.maximum) else {
        return;
    };
    if current < wanted {
        let current = Some(most.map_or(wanted, |most| most.min(wanted)).max(current));
        // If that fails, the connection over the limit reports it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..now });
    }
}

fn wanted(size: usize, serves: bool) -> u64 {
    let to_store = if serves { TO_STORE * size } else { TO_STORE };
    (OWN + GROUPS * size + to_store) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_allowed_its_connections_and_no_fewer_than_before() {
        let limit = || getrlimit(Resource::Nofile);
        let before = limit();
        allow(2, true);
        assert!(limit().current >= before.current);
        allow(1024, true);
        let after = limit();
        assert_eq!(after.maximum, before.maximum);
        let most = after.maximum.unwrap_or(u64::MAX);
        assert!(after.current.unwrap_or(u64::MAX) >= wanted(1024, true).min(most));
    }
}
