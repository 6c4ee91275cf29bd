//! Kills one of several processes in a named phase, and resumes the run as p stages by d replicas, different
//! ones each time. The result must equal, bit for bit, that of a single process without kills.
//! `PHASE_KILLS=200 cargo test --test cli resume::phases -- --nocapture` makes that many kills; without the
//! variable each phase has one.
//!
//! Debug builds kill themselves where `GPIPE_FAIL_POINT` says (`src/torch/fail_point.rs`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use gpipe::checkpoint::Checkpoint;

use super::killed::Random;
use super::{assert_same, place, trained};
use crate::run;

const STEPS: u64 = 16;
/// A small training, saved after every other step.
const RUN: &str = "--data text.txt --layers 2 --d-model 8 --heads 2 --seq 8 --batch 8 --micro 4 \
                   --dropout 0.1 --threads-per-stage 1 --warmup 2 --clip 0.5 --steps 16 --tree 2 \
                   --checkpoint-every 2 --checkpoint-keep 2 --quiet";

/// A phase, and about how often a rank passes it in two steps.
const PHASES: [(&str, u64); 13] = [
    ("head", 2),
    ("forward", 8),
    ("backward", 8),
    ("exchange", 12),
    ("vote", 16),
    ("update", 4),
    ("copy", 1),
    ("shard", 2),
    ("seal", 1),
    ("sealed", 1),
    ("published", 1),
    ("leave", 0),
    // Kills two processes in one run of the command, the second after a restart.
    ("head again", 2),
];

/// Processes and replicas: p x d of 2 x 1, 1 x 2, 2 x 2 and 4 x 1.
const SHAPES: [(usize, usize); 4] = [(2, 1), (2, 2), (4, 2), (4, 1)];

/// Longer than any command takes.
const LIMIT: Duration = Duration::from_mins(2);

/// Result of a launcher.
struct Ended {
    code: Option<i32>,
    said: String,
}

/// Runs a command, and kills it if it hangs.
#[track_caller]
fn ended(folder: &Path, args: &str, fail_points: &str) -> Ended {
    let errors = folder.join("errors");
    let mut command = run::command(folder, args);
    let mut child = command
        .env("GPIPE_FAIL_POINT", fail_points)
        .stdout(Stdio::null())
        .stderr(File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            let said = fs::read_to_string(&errors).unwrap();
            panic!("it hangs after {fail_points}: {said}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ended {
        code: status.code(),
        said: fs::read_to_string(&errors).unwrap(),
    }
}

/// Number of kills by phase.
#[derive(Default)]
struct Count {
    kills: BTreeMap<String, u64>,
    /// Number of starts by shape.
    lives: BTreeMap<String, u64>,
    restarts: usize,
    runs: u64,
}

impl Count {
    fn all(&self) -> u64 {
        self.kills.values().sum()
    }

    /// Counts the phases of the kills that the processes reported.
    fn add(&mut self, said: &str) -> u64 {
        let points = said
            .lines()
            .filter_map(|line| line.split_once("fail point "));
        let mut kills = 0;
        for (_, name) in points {
            *self.kills.entry(name.to_owned()).or_default() += 1;
            kills += 1;
        }
        self.restarts += said.matches("started again").count();
        kills
    }
}

/// Chooses the rank and the moment of the kill, for a start of this shape with `left` steps to go.
fn fail_point(
    (name, in_two_steps): (&str, u64),
    (processes, replicas): (usize, usize),
    left: u64,
    random: &mut Random,
) -> String {
    let name = name.strip_suffix(" again").unwrap_or(name);
    let rank = match name {
        "seal" | "sealed" | "published" => 0,
        // Each stage is written by its copy in the first replica.
        "shard" => random.below((processes / replicas) as u64),
        _ => random.below(processes as u64),
    };
    let passages = (in_two_steps * left / 2 * 2 / 3).max(1);
    format!("{name}:{rank}:{}", random.below(passages))
}

/// One run with kills, from start to end.
fn killed_run(
    folder: &Path,
    wanted: u64,
    tried: &mut usize,
    count: &mut Count,
    random: &mut Random,
) {
    let own = format!("run-{}", count.runs);
    count.runs += 1;
    for life in 0.. {
        // The first start is always 2 x 1.
        let (phase, mut shape) = (PHASES[*tried % PHASES.len()], SHAPES[0]);
        if life > 0 {
            shape = SHAPES[random.below(4) as usize];
        }
        if phase.0 == "exchange" && shape.1 == 1 {
            shape = SHAPES[1 + random.below(2) as usize];
        }
        let is_last = life > 3 || count.all() >= wanted;
        let checkpoints = folder.join(&own).join("checkpoints");
        let done = Checkpoint::newest(checkpoints).map_or(0, |newest| newest.extras().step);
        let restarts = usize::from(phase.0.ends_with("again"));
        let points: Vec<String> = (0..=restarts)
            .map(|_| fail_point(phase, shape, STEPS - done, random))
            .collect();
        let points = if is_last {
            String::new()
        } else {
            points.join(" ")
        };
        *tried += usize::from(!is_last);
        let how = if folder.join(&own).join("config.toml").exists() {
            format!("--quiet --resume {own}")
        } else {
            format!("{RUN} --out {own}")
        };
        let (processes, replicas) = shape;
        let args = format!(
            "launch --processes {processes} --max-restarts {restarts} -- train {how} --devices cpu \
             --replicas {replicas}"
        );
        let ended = ended(folder, &args, &points);
        let kills = count.add(&ended.said);
        *count
            .lives
            .entry(format!("{} x {replicas}", processes / replicas))
            .or_default() += 1;
        let survives = kills <= restarts as u64;
        assert_eq!(
            ended.code == Some(0),
            survives,
            "{own}: {args}: {points}: {}",
            ended.said
        );
        if survives {
            break;
        }
        // The other processes did not wait to be told.
        assert!(
            ended.said.contains("was ended by signal 9"),
            "{}",
            ended.said
        );
    }
    assert_same(folder, &own, "whole");
}

#[test]
fn killed_in_any_phase_it_goes_on_as_other_stages_and_replicas() {
    let wanted = std::env::var("PHASE_KILLS").map_or(13, |kills| kills.parse().unwrap());
    let folder = place();
    let folder = folder.path();
    let flags: Vec<&str> = RUN.split_whitespace().collect();
    trained(folder, &[&flags[..], &["--out", "whole"]].concat());
    let begin = Instant::now();
    let (mut count, mut random, mut tried) = (Count::default(), Random(wanted), 0);
    while count.all() < wanted {
        killed_run(folder, wanted, &mut tried, &mut count, &mut random);
    }
    println!(
        "{} kills by SIGKILL in {} runs of {STEPS} steps, all of which ended with the losses, \
         weights and data position of one process that nobody has killed ({:.0} s)\nby phase: {:?}\n\
         lives by stages x replicas: {:?}; {} times a launcher has started all again",
        count.all(),
        count.runs,
        begin.elapsed().as_secs_f64(),
        count.kills,
        count.lives,
        count.restarts
    );
    assert_eq!(count.lives.len(), SHAPES.len());
    // One phase is listed twice.
    assert!(wanted < 100 || count.kills.len() + 1 == PHASES.len());
}
