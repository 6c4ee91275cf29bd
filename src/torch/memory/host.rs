//! Memory that programs on the host can still allocate.
//!
//! Three limits hold at once: the machine's memory, the limit of each group of processes (a
//! container, a service, a job) that this one is in, and the limit of the process itself. The
//! smallest counts.

use std::fs;
use std::path::{Component, Path};

use gpipe_partitioner::Bytes;

/// Bytes that can still be had, and that there are in all, below a root folder that has
/// `/proc` and `/sys`; nothing where the system does not tell.
pub(super) fn room(root: &Path) -> Option<(Bytes, Bytes)> {
    let machine = machine(root);
    let all = machine.into_iter().chain(groups(root)).chain(process(root));
    let least =
        |(free, total): (u64, u64), (other, of): (u64, u64)| (free.min(other), total.min(of));
    let (free, total) = all.reduce(least)?;
    Some((Bytes(free.min(total)), Bytes(total)))
}

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default()
}

fn machine(root: &Path) -> Option<(u64, u64)> {
    let text = read(root, "proc/meminfo");
    kibibytes(&text, "MemAvailable:").zip(kibibytes(&text, "MemTotal:"))
}

/// The bytes in a line such as `MemTotal:  100 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The limits of the process itself, as `ulimit -v` and `ulimit -d` set them.
fn process(root: &Path) -> impl Iterator<Item = (u64, u64)> {
    let (limits, status) = (
        read(root, "proc/self/limits"),
        read(root, "proc/self/status"),
    );
    let limit = move |(name, taken): (&str, &str)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
        let taken = kibibytes(&status, taken).unwrap_or(0);
        Some((limit.saturating_sub(taken), limit))
    };
    [
        ("Max address space", "VmSize:"),
        ("Max data size", "VmData:"),
    ]
    .into_iter()
    .filter_map(limit)
}

/// The two interfaces to control groups that Linux has.
#[derive(Debug, Clone, Copy)]
struct Interface {
    limit: &'static str,
    taken: &'static str,
    /// Lines of `memory.stat` with memory that the system reclaims before it ends a program.
    cached: [&'static str; 2],
}

const V1: Interface = Interface {
    limit: "memory.limit_in_bytes",
    taken: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};
const V2: Interface = Interface {
    limit: "memory.max",
    taken: "memory.current",
    cached: ["active_file", "inactive_file"],
};

/// The limits of this process's control groups and of those above them.
fn groups(root: &Path) -> Vec<(u64, u64)> {
    let own = read(root, "proc/self/cgroup");
    let mounts = read(root, "proc/self/mountinfo");
    let mut all = Vec::new();
    for (interface, within, point) in mounts.lines().filter_map(mounted) {
        let Some(group) = own.lines().find_map(|line| group(line, interface)) else {
            continue;
        };
        // In a container only the tree of its own group may be visible.
        let below = Path::new(group)
            .strip_prefix(within)
            .unwrap_or(Path::new(""));
        let plain = below
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let top = root.join(point.trim_start_matches('/'));
        let folder = if plain { top.join(below) } else { top.clone() };
        let folders = folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&top));
        all.extend(folders.filter_map(|folder| limit(folder, interface)));
    }
    all
}

/// The interface, the group that is its root, and the folder, of a line of `mountinfo` that
/// is about control groups of memory.
fn mounted(line: &str) -> Option<(Interface, &str, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (within, point) = (mount.next()?, mount.next()?);
    let mut system = system.split(' ');
    match system.next()? {
        "cgroup2" => Some((V2, within, point)),
        "cgroup" if system.nth(1)?.split(',').any(|option| option == "memory") => {
            Some((V1, within, point))
        }
        _ => None,
    }
}

/// The group in a line of `/proc/self/cgroup`, such as `4:memory:/job` or `0::/job`.
fn group(line: &str, interface: Interface) -> Option<&str> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    // The second version has one tree for all controllers, and names none.
    let is_own = if interface.limit == V2.limit {
        controllers.is_empty()
    } else {
        controllers.split(',').any(|one| one == "memory")
    };
    is_own.then_some(group)
}

fn limit(folder: &Path, interface: Interface) -> Option<(u64, u64)> {
    let number = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse().ok()
    };
    // `max` is none.
    let limit = number(interface.limit)?;
    let taken = number(interface.taken).unwrap_or(0);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = interface.cached.iter().filter_map(|name| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(own, _)| own == name)?.1.parse::<u64>().ok()
    });
    let taken = taken.saturating_sub(cached.sum());
    Some((limit.saturating_sub(taken), limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A root folder with these files, on a machine that has 900 of 1000 MiB.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal: 1024000 kB\nMemFree: 1 kB\nMemAvailable:   921600 kB\n";
        for (path, text) in [("proc/meminfo", meminfo)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[track_caller]
    fn assert_room(files: &[(&str, &str)], free: u64, total: u64) {
        let root = tree(files);
        let room = room(root.path()).unwrap();
        assert_eq!(room, (Bytes(free * MIB), Bytes(total * MIB)), "{files:?}");
    }

    const UNIFIED: (&str, &str) = (
        "proc/self/mountinfo",
        "21 20 0:19 / /sys rw - sysfs sysfs rw\n\
         30 21 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    const SEPARATE: (&str, &str) = (
        "proc/self/mountinfo",
        "31 21 0:27 /box /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
         32 21 0:28 /box /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n",
    );

    #[test]
    fn without_groups_and_limits_it_is_the_machines() {
        assert_room(&[], 900, 1000);
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(room(nothing.path()), None);
        assert_room(&[("proc/self/cgroup", "0::/a\n"), UNIFIED], 900, 1000);
        let unlimited = [
            ("proc/self/cgroup", "0::/\n"),
            UNIFIED,
            ("sys/fs/cgroup/memory.max", "max\n"),
            (
                "proc/self/limits",
                "Max address space   unlimited  unlimited  bytes\n",
            ),
        ];
        assert_room(&unlimited, 900, 1000);
    }

    /// A container's limit was not seen: the check let a model pass, and the system then killed
    /// the process.
    #[test]
    fn the_limit_of_a_container_counts() {
        let container = [
            ("proc/self/cgroup", "0::/\n"),
            UNIFIED,
            ("sys/fs/cgroup/memory.max", "419430400\n"),
            ("sys/fs/cgroup/memory.current", "104857600\n"),
        ];
        assert_room(&container, 300, 400);
        // Pages of files are reclaimed first: a process that has read much is not out of memory.
        let stat = "anon 1\nfile 999\ninactive_file 20971520\nactive_file 31457280\n";
        let with_files = [&container[..], &[("sys/fs/cgroup/memory.stat", stat)]].concat();
        assert_room(&with_files, 350, 400);
        // More taken than allowed, as while a limit is lowered.
        let over = [
            &container[..3],
            &[("sys/fs/cgroup/memory.current", "999999999\n")],
        ];
        assert_room(&over.concat(), 0, 400);
    }

    #[test]
    fn the_least_of_the_groups_above_counts() {
        let nested = [
            (
                "proc/self/cgroup",
                "1:name=systemd:/other\n0::/job/step/task\n",
            ),
            UNIFIED,
            ("sys/fs/cgroup/job/memory.max", "209715200\n"),
            ("sys/fs/cgroup/job/memory.current", "157286400\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/task/memory.max", "104857600\n"),
            ("sys/fs/cgroup/job/step/task/memory.current", "1048576\n"),
            ("sys/fs/cgroup/elsewhere/memory.max", "1\n"),
        ];
        assert_room(&nested, 50, 100);
        // A group that is not visible from inside: the mounted limit counts.
        let outside = [
            ("proc/self/cgroup", "0::/../../job\n"),
            UNIFIED,
            ("sys/fs/cgroup/memory.max", "104857600\n"),
        ];
        assert_room(&outside, 100, 100);
    }

    #[test]
    fn the_first_version_of_the_interface_counts_as_well() {
        let stat = "inactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 0\n";
        let own = [
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/box/cpu\n4:memory:/box/job\n0::/x\n",
            ),
            SEPARATE,
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
            (
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                "209715200\n",
            ),
            (
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes",
                "52428800\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.stat", stat),
            ("sys/fs/cgroup/cpu/job/memory.limit_in_bytes", "1\n"),
        ];
        assert_room(&own, 160, 200);
    }

    /// An error of a process with its own limit once named the machine's memory.
    #[test]
    fn the_limits_of_the_process_count() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max data size             unlimited            unlimited            bytes\n\
                      Max address space         524288000            unlimited            bytes\n";
        let own = [
            ("proc/self/limits", limits),
            (
                "proc/self/status",
                "Name:\tx\nVmSize:\t  102400 kB\nVmData:\t 51200 kB\n",
            ),
        ];
        assert_room(&own, 400, 500);
    }
}
