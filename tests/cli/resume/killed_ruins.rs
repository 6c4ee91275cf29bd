//! Kills runs that an update ruins, while they save its result.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::killed::{Random, killed_after, tenths};
use super::{assert_same, command, newest, place, trained};

/// A small training that replaces its checkpoint after each step.
const RUN: &str = "--data text.txt --layers 1 --d-model 8 --heads 2 --seq 8 --batch 4 --micro 2 \
                   --dropout 0.1 --threads-per-stage 1 --warmup 2 --checkpoint-every 1 \
                   --checkpoint-keep 1 --quiet";

#[test]
fn wherever_a_ruined_run_is_killed_the_good_checkpoint_is_there() {
    let place = place();
    let folder = place.path();
    for (steps, out) in [("4", "good"), ("8", "whole")] {
        let flags = RUN.split_whitespace();
        let flags = flags.chain(["--steps", steps, "--out", out]);
        trained(folder, &flags.collect::<Vec<_>>());
    }
    let wanted = tenths(3);
    let mut random = Random(wanted);
    let (mut kills, mut runs, mut writing) = (0, 0, 0);
    while kills < wanted {
        let run = format!("run-{runs}");
        copy(&folder.join("good"), &folder.join(&run));
        // Infinite weights, or finite weights with a loss that is not finite.
        let wild = ["optimizer.lr=1e39", "optimizer.lr=1e20"][runs % 2];
        let flags = ["--resume", &run, "--steps", "8", "--quiet", "--set", wild];
        let child = command(folder, &flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let own = folder.join(&run);
        let lines = || fs::read_to_string(own.join("metrics.jsonl")).unwrap();
        let is_there = |name: &str| own.join("checkpoints").join(name).exists();
        let saved = || is_there("step-00000005");
        // The first two end by themselves; the others are killed on the way.
        let moment = if runs < 2 { 2 } else { random.below(2) };
        let ruined = || match moment {
            0 => lines().lines().count() > 4,
            1 => is_there(".writing-step-00000005") || saved(),
            _ => false,
        };
        kills += u64::from(killed_after(child.unwrap(), ruined, &mut random));
        writing += u64::from(own.join("checkpoints/.writing-step-00000005").exists());
        runs += 1;
        let found = newest(folder, &run);
        assert_eq!(found.extras().step, 4, "{run}");
        found.check_finite().unwrap();
        trained(folder, &["--resume", &run, "--steps", "8", "--lr", "0.003"]);
        assert_same(folder, &run, "whole");
        assert!(
            runs as u64 <= 20 * wanted,
            "they end before they are killed"
        );
    }
    println!(
        "{kills} kills by SIGKILL of {runs} runs right after an update that ruins them: {writing} while \
         its checkpoint was being written; all had the checkpoint before it, and went on from there"
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
