//! Processes of a training that are killed or stopped at any moment: in a step, in the votes, in an update,
//! while tied weights are exchanged, while a checkpoint is written. `WORLD_KILLS=100 cargo test --test world
//! killed_trainings -- --nocapture` prints how long the last of the others survives, stops a process twenty
//! times, and fails if the others survive the patience by half a second; without the variable there are two
//! kills and two stops.

use std::time::{Duration, SystemTime};

use super::failures::SHORT;
use super::job::Job;
use super::kills::told;
use super::parts::PATIENCE;
use super::training::{FAULT, FOLDER, UPDATES};

/// All must have ended this many milliseconds after the patience.
pub(crate) const LATE: f64 = 500.0;

/// Longer than a test waits: nothing is noticed by silence.
const PATIENT: (&str, &str) = (PATIENCE, "120000");

/// They train endlessly.
const ENDLESS: (&str, &str) = (FAULT, "none");

/// Starts such a training, and sends a signal to one of its ranks at any moment. *Returns* how many
/// milliseconds later the last of the others noticed, and had ended.
#[track_caller]
fn others_end(size: usize, number: u64, patience: (&str, &str), signal: &str) -> (f64, f64) {
    let victim = (number % size as u64) as usize;
    let folder = tempfile::tempdir().unwrap();
    let folder = (FOLDER, folder.path().to_str().unwrap());
    let mut job = Job::start("train", size, &[patience, ENDLESS, folder]);
    job.wait_for("ready");
    std::thread::sleep(Duration::from_micros(number * 7919 % 40_000));
    let at = SystemTime::now();
    job.ranks[victim].signal(signal);
    let ends = job.others(victim);
    for ended in &ends {
        assert_eq!(ended.code(), Some(75), "{}", ended.printed);
        let lost = ended.lost();
        assert!(lost.starts_with(&format!("rank {victim} on `")), "{lost}");
        assert!(!ended.printed.contains("frame #"), "{}", ended.printed);
    }
    let after = |at_end: SystemTime| at_end.duration_since(at).unwrap().as_secs_f64() * 1e3;
    let last = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
    (
        last(ends.iter().map(|ended| after(ended.heard())).collect()),
        last(ends.iter().map(|ended| after(ended.at)).collect()),
    )
}

#[test]
fn kills_at_any_moment() {
    let kills: u64 = std::env::var("WORLD_KILLS").map_or(2, |kills| kills.parse().unwrap());
    let all = (0..kills).map(|kill| others_end(2, kill, PATIENT, "-KILL"));
    let (heard, ended) = all.unzip();
    println!(
        "{kills} kills of one of two that train, until the other one\nknows: {}",
        told(heard)
    );
    println!("has ended: {}", told(ended));
}

/// Regression test: no rank waited for a tensor of the one killed while writing the last checkpoint; the
/// other one waited for its part, and noticed the loss only after the patience.
#[test]
fn a_kill_in_the_last_checkpoint_is_noticed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = (FOLDER, folder.path().to_str().unwrap());
    // A shard passes this point twice.
    let last = format!("shard:1:{}", 2 * (UPDATES - 1));
    let mut job = Job::start("train", 2, &[PATIENT, folder, ("GPIPE_FAIL_POINT", &last)]);
    let ends = job.others(1);
    let [ended] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert!(ended.lost().starts_with("rank 1 on `"), "{}", ended.printed);
    assert!(
        ended.printed.contains("its process has ended"),
        "{}",
        ended.printed
    );
}

/// Any rank, at any moment.
#[test]
fn a_stopped_process_is_lost_after_the_patience() {
    let kills: u64 = std::env::var("WORLD_KILLS").map_or(10, |kills| kills.parse().unwrap());
    let patience: f64 = SHORT.1.parse().unwrap();
    let size = |stop: u64| if stop.is_multiple_of(2) { 2 } else { 4 };
    let late = |stop| others_end(size(stop), stop / 2, SHORT, "-STOP").1 - patience;
    let late: Vec<f64> = (0..kills / 5).map(late).collect();
    let longest = late.iter().copied().fold(0.0, f64::max);
    let stops = late.len();
    println!(
        "{stops} stops, until the last of the others has ended, after the patience: {}",
        told(late)
    );
    assert!(kills < 100 || longest <= LATE, "{longest} ms");
}
