//! Kills a run at random moments. `KILLS=200 cargo test --test cli killed -- --nocapture` prints how often
//! and where; without the variable there are ten kills. Three tenths each go to forks that begin and to runs
//! that an update ruins, in the neighbouring modules.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpipe::checkpoint::Checkpoint;

use super::{assert_same, command, place, trained};

const STEPS: &str = "120";
/// A small training, saved after each step so that many kills hit a write.
const RUN: &str = "--data text.txt --layers 1 --d-model 8 --heads 2 --seq 8 --batch 4 --micro 2 \
                   --dropout 0.1 --threads-per-stage 1 --warmup 2 --checkpoint-every 1 \
                   --checkpoint-keep 2 --quiet";
/// Each restart has other stages and another schedule.
const CUTS: [&[&str]; 3] = [
    &["--devices", "cpu"],
    &["--devices", "cpu,cpu,cpu", "--schedule", "gpipe"],
    &["--devices", "cpu,cpu", "--schedule", "1f1b"],
];

/// Returns `count` tenths of all kills.
pub(crate) fn tenths(count: u64) -> u64 {
    let all: u64 = std::env::var("KILLS").map_or(10, |kills| kills.parse().unwrap());
    (all * count).div_ceil(10)
}

/// Pseudo-random numbers, the same in each run of the test.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[derive(Default)]
struct Count {
    kills: u64,
    /// Kills while a checkpoint was being written.
    writing: u64,
    /// Kills before the first checkpoint.
    before: u64,
    runs: u64,
}

#[test]
fn at_random_moments_and_again_and_again_it_ends_with_the_same_bits() {
    let wanted = tenths(4);
    let folder = place();
    let folder = folder.path();
    let begin = Instant::now();
    trained(folder, &flags(&["--out", "whole"], 2));
    let usual = begin.elapsed();
    let (mut count, mut random) = (Count::default(), Random(wanted));
    while count.kills < wanted {
        let run = format!("run-{}", count.runs);
        killed_until(folder, &run, wanted, usual, &mut count, &mut random);
        assert_same(folder, &run, "whole");
        count.runs += 1;
    }
    println!(
        "{} kills by SIGKILL in {} runs of {STEPS} steps: {} while a checkpoint was being written, {} \
         before the first; after every other one the newest checkpoint was whole; all runs ended with the \
         losses, weights and data position of the uninterrupted one, bit by bit ({:.0} s)",
        count.kills,
        count.runs,
        count.writing,
        count.before,
        begin.elapsed().as_secs_f64()
    );
    assert!(count.kills >= wanted);
}

fn flags<'a>(more: &[&'a str], life: u64) -> Vec<&'a str> {
    let cut = CUTS[(life % 3) as usize];
    let run = RUN.split_whitespace().chain(["--steps", STEPS]);
    run.chain(cut.iter().copied())
        .chain(more.iter().copied())
        .collect()
}

/// Trains a run to its end, with kills until `wanted` is reached.
fn killed_until(
    folder: &Path,
    run: &str,
    wanted: u64,
    usual: Duration,
    count: &mut Count,
    random: &mut Random,
) {
    let checkpoints = folder.join(run).join("checkpoints");
    let mut reached = 0;
    loop {
        let life = count.kills;
        let mut child = started(folder, run, life);
        if count.kills < wanted {
            // From before the start to after the usual end.
            let longest = usual.as_millis() as u64 + 50;
            thread::sleep(Duration::from_millis(random.below(longest)));
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        if status.success() {
            return;
        }
        assert_eq!(
            status.code(),
            None,
            "it failed by itself after {life} kills"
        );
        count.kills += 1;
        count.writing += u64::from(is_writing(&checkpoints));
        let newest = match Checkpoint::newest(&checkpoints) {
            Ok(newest) => newest.extras().step,
            Err(error) => {
                assert_eq!(reached, 0, "after {} kills: {error}", count.kills);
                count.before += 1;
                0
            }
        };
        assert!(newest >= reached, "went back from {reached} to {newest}");
        reached = newest;
    }
}

/// Starts the run, or resumes it if possible.
fn started(folder: &Path, run: &str, life: u64) -> Child {
    let there = folder.join(run).join("config.toml").exists();
    let how = if there { "--resume" } else { "--out" };
    let mut command = command(folder, &flags(&[how, run], life));
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Kills a process at a random moment soon after `begun`, or waits if it ends by itself. Returns whether it
/// was killed.
pub(crate) fn killed_after(
    mut child: Child,
    begun: impl Fn() -> bool,
    random: &mut Random,
) -> bool {
    while !begun() && child.try_wait().unwrap().is_none() {
        thread::yield_now();
    }
    // Spreads the kills beyond the first moment.
    for _ in 0..random.below(2000) {
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap().code().is_none()
}

fn is_writing(checkpoints: &Path) -> bool {
    let names = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
    names.any(|name| name.starts_with(".writing-"))
}
