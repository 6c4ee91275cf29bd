//! One of four processes fails: all others end, and name it.

use super::job::{Ended, Job};
use super::parts::{FAILS, PATIENCE};

/// A patience too long for any process to be lost by silence.
const PATIENT: (&str, &str) = (PATIENCE, "120000");

/// For tests of silence. A busy machine may delay a process's heartbeat for a while.
pub(crate) const SHORT: (&str, &str) = (PATIENCE, "3000");

#[track_caller]
pub(crate) fn all_name(ends: &[Ended], rank: usize, why: &str) {
    assert_eq!(ends.len(), 3);
    for ended in ends {
        let lost = ended.lost();
        assert!(lost.starts_with(&format!("rank {rank} on `")), "{lost}");
        assert!(lost.contains(why), "{lost}");
        assert!(!ended.printed.contains("frame #"), "{}", ended.printed);
    }
}

/// Covers each rank, including the first one, which serves the store.
#[test]
fn of_a_killed_process_all_others_know() {
    for victim in 0..4 {
        let mut job = Job::start("ring", 4, &[PATIENT]);
        job.wait_for("ready");
        job.ranks[victim].signal("-KILL");
        let ends = job.others(victim);
        all_name(&ends, victim, "is lost");
        assert!(
            ends.iter().all(|ended| ended.code() == Some(75)),
            "{ends:?}"
        );
    }
}

/// No connection ends then, so only silence shows the loss.
#[test]
fn a_stopped_process_is_lost_after_the_patience() {
    for victim in [0, 2] {
        let mut job = Job::start("ring", 4, &[SHORT]);
        job.wait_for("ready");
        job.ranks[victim].signal("-STOP");
        let ends = job.others(victim);
        all_name(&ends, victim, "is lost");
        assert!(
            ends.iter().all(|ended| ended.code() == Some(75)),
            "{ends:?}"
        );
    }
}

/// The process learns of its own loss when it continues.
#[test]
fn a_process_that_is_stopped_for_too_long_ends_too() {
    let mut job = Job::start("ring", 4, &[SHORT]);
    job.wait_for("ready");
    job.ranks[2].signal("-STOP");
    all_name(&job.others(2), 2, "no sign of life");
    job.ranks[2].signal("-CONT");
    let ended = job.ranks[2].finish();
    assert_eq!(ended.code(), Some(75), "{}", ended.printed);
    // The store has ended with rank 0 by then, which may be noticed first.
    assert!(ended.lost().starts_with("rank "), "{}", ended.printed);
}

/// A pause shorter than the patience does not count.
#[test]
fn a_short_pause_of_all_is_no_loss() {
    let mut job = Job::start("ring", 4, &[(PATIENCE, "20000")]);
    job.wait_for("ready");
    job.ranks.iter().for_each(|rank| rank.signal("-STOP"));
    job.ranks.iter().for_each(|rank| rank.signal("-CONT"));
    job.ranks[1].signal("-KILL");
    all_name(&job.others(1), 1, "is lost");
}

#[test]
fn of_an_error_all_hear_the_rank_and_the_text() {
    for victim in [0, 3] {
        let rank = victim.to_string();
        let mut job = Job::start("ring", 4, &[PATIENT, (FAILS, &rank)]);
        let own = job.ranks[victim].finish();
        let ends = job.others(victim);
        all_name(
            &ends,
            victim,
            "failed: stage 1, layer `block.3`, micro-batch 2: boom",
        );
        // It would fail again: restarting does not help.
        assert!(ends.iter().all(|ended| ended.code() == Some(1)), "{ends:?}");
        assert_eq!(own.lost(), ends[0].lost());
    }
}

/// Processes whose only connection is to the store.
#[test]
fn without_transfers_the_silence_tells() {
    for victim in [0, 1] {
        let mut job = Job::start("quiet", 4, &[SHORT]);
        job.wait_for("ready");
        job.ranks[victim].signal("-KILL");
        all_name(&job.others(victim), victim, "is lost");
    }
}
