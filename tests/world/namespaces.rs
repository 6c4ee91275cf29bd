//! Processes on two sides of a cable that is pulled during training: two network namespaces of this machine
//! with a pair of devices between them, one of which is taken down. `WORLD_KILLS=100 cargo test --test world
//! namespaces -- --nocapture` pulls it ten times, prints how long the last process survives the patience, and
//! fails if that is more than half a second; without the variable it is pulled once. If the system does not
//! allow creating namespaces (it needs root), the test says so, and tests nothing.

use std::process::Command;
use std::time::{Duration, SystemTime};

use super::failures::SHORT;
use super::job::{Ended, Job};
use super::killed_trainings::LATE;
use super::kills::told;
use super::training::{FAULT, FOLDER};

/// Address of rank 0.
const MASTER: &str = "10.77.0.1";
/// Name of the cable's end on each side.
const PLUG: &str = "plug";
/// Runs `ip` with these arguments. *Errors*: its message.
fn ip(args: &str) -> Result<(), String> {
    let done = Command::new("ip").args(args.split_whitespace()).output();
    let done = done.map_err(|error| format!("ip: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("ip {args}: {said}"))
}

/// Two namespaces and the link between them.
struct Cable {
    sides: [String; 2],
}

impl Cable {
    fn new() -> Result<Self, String> {
        let side = |side: &str| format!("gpipe-{side}-{}", std::process::id());
        let cable = Self {
            sides: [side("near"), side("far")],
        };
        let [near, far] = &cable.sides;
        ip(&format!("netns add {near}"))?;
        ip(&format!("netns add {far}"))?;
        ip(&format!(
            "link add {PLUG} netns {near} type veth peer name {PLUG} netns {far}"
        ))?;
        for (number, side) in cable.sides.iter().enumerate() {
            ip(&format!(
                "-n {side} addr add 10.77.0.{}/24 dev {PLUG}",
                number + 1
            ))?;
            ip(&format!("-n {side} link set {PLUG} up"))?;
            ip(&format!("-n {side} link set lo up"))?;
        }
        Ok(cable)
    }

    fn pull(&self) -> SystemTime {
        ip(&format!("-n {} link set {PLUG} down", self.sides[1])).unwrap();
        SystemTime::now()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for side in &self.sides {
            // It may not exist if it could not be created.
            let _ = ip(&format!("netns del {side}"));
        }
    }
}

/// Milliseconds from the patience after `at` to the ends of the processes.
fn after(ends: &[Ended], at: SystemTime) -> f64 {
    let patience: f64 = SHORT.1.parse().unwrap();
    let after = |ended: &Ended| ended.at.duration_since(at).unwrap().as_secs_f64() * 1e3;
    ends.iter().map(after).fold(0.0, f64::max) - patience
}

#[test]
fn of_a_pulled_cable_both_sides_know() {
    let cable = match Cable::new() {
        Ok(cable) => cable,
        Err(why) => {
            println!("not tested, as no network namespace can be made here: {why}");
            return;
        }
    };
    let kills: u64 = std::env::var("WORLD_KILLS").map_or(1, |kills| kills.parse().unwrap());
    let pulls = kills.div_ceil(10);
    let mut late = Vec::new();
    for pull in 0..pulls {
        // Half of them on each side.
        let size = if pull.is_multiple_of(2) { 4 } else { 2 };
        let side = |rank: usize| cable.sides[rank * 2 / size].as_str();
        let folder = tempfile::tempdir().unwrap();
        let folder = (FOLDER, folder.path().to_str().unwrap());
        let variables = [SHORT, (FAULT, "none"), folder];
        let mut job = Job::start_in("train", size, (&side, MASTER), &variables);
        job.wait_for("ready");
        std::thread::sleep(Duration::from_micros(pull * 7919 % 40_000));
        let at = cable.pull();
        let ends = job.all();
        let (near, far) = ends.split_at(size / 2);
        for (ends, rank, why) in [
            (near, size / 2, "no sign of life for 3 s"),
            (far, 0, "its store has not answered for 3 s"),
        ] {
            for ended in ends {
                assert_eq!(ended.code(), Some(75), "{}", ended.printed);
                let lost = ended.lost();
                assert!(lost.starts_with(&format!("rank {rank} on `")), "{lost}");
                assert!(lost.contains(why), "{lost}");
                assert!(!ended.printed.contains("frame #"), "{}", ended.printed);
            }
        }
        late.push(after(&ends, at));
        ip(&format!("-n {} link set {PLUG} up", cable.sides[1])).unwrap();
    }
    let longest = late.iter().copied().fold(0.0, f64::max);
    println!(
        "{pulls} pulls, until the last one has ended, after the patience: {}",
        told(late)
    );
    assert!(kills < 100 || longest <= LATE, "{longest} ms");
}
