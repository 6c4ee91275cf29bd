//! Reported speeds of a run, and how often they are printed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{gpipe, metrics, succeeded};

/// Standard output and standard error of a small run with these flags.
fn run(folder: &Path, flags: &str) -> (String, String) {
    fs::write(
        folder.join("text.txt"),
        "the whale, the whale! up helm! ".repeat(80),
    )
    .unwrap();
    let args = format!(
        "train --data text.txt --layers 1 --d-model 16 --heads 2 --seq 16 --batch 8 --micro 4 \
         --threads-per-stage 1 --out run {flags}"
    );
    succeeded(gpipe(folder, &args), &args)
}

/// The printed steps, with their samples per second.
fn printed(errors: &str) -> Vec<(usize, f64)> {
    let lines = errors.lines().filter_map(|line| line.strip_prefix("step "));
    let speeds = lines.filter_map(|line| {
        let (step, rest) = line.split_once('/')?;
        let (before, _) = rest.split_once(" samples/s")?;
        let speed = before.rsplit_once(' ')?.1;
        Some((step.trim().parse().unwrap(), speed.parse().unwrap()))
    });
    speeds.collect()
}

fn number(line: &Value, key: &str) -> f64 {
    line[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} in {line}"))
}

#[track_caller]
fn close(told: f64, wanted: f64) {
    assert!((told / wanted - 1.0).abs() < 0.02, "{told} {wanted}");
}

/// Regression test: 90.8 samples per second were printed as 723: the median of single steps, without the time
/// between them.
#[test]
fn printed_speeds_are_samples_over_the_time_that_elapsed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let often = "--steps 40 --eval-every 2 --checkpoint-every 1 --log-every 10";
    let (text, errors) = run(folder, often);
    let lines = metrics(folder, "run");
    let told = printed(&errors);
    let steps: Vec<usize> = told.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [1, 10, 20, 30, 40]);
    let mut before = 0;
    for (step, speed) in told {
        let interval = &lines[before..step];
        let elapsed: f64 = interval.iter().map(|line| number(line, "elapsed_ms")).sum();
        close(speed, 8e3 * interval.len() as f64 / elapsed);
        before = step;
    }
    // Elapsed time agrees, including evaluations and checkpoints.
    let elapsed: f64 = lines[1..]
        .iter()
        .map(|line| number(line, "elapsed_ms"))
        .sum();
    let clock = number(&lines[39], "time") - number(&lines[0], "time");
    close(elapsed / 1e3, clock);
    let steps: f64 = lines[1..].iter().map(|line| number(line, "step_ms")).sum();
    assert!(steps < elapsed, "{steps} {elapsed}");
    // Each line has its own speed, and the summary that of all.
    for line in &lines {
        close(
            number(line, "samples_per_s"),
            8e3 / number(line, "elapsed_ms"),
        );
        close(
            number(line, "tokens_per_s"),
            16.0 * number(line, "samples_per_s"),
        );
    }
    let all = 40.0 * 8e3 / (elapsed + number(&lines[0], "elapsed_ms"));
    let (_, speed) = text.split_once("\nspeed ").unwrap();
    let (speed, rest) = speed.split_once(" samples/s").unwrap();
    close(speed.trim().parse().unwrap(), all);
    assert!(
        rest.contains(" over ") && rest.contains("; median step "),
        "{rest}"
    );
}

/// A resumed run's speed covers the steps that it has added.
#[test]
fn the_speed_of_a_resumed_run_is_that_of_its_own_steps() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, "--steps 4");
    let args = "train --resume run --steps 10 --json";
    let (text, _) = succeeded(gpipe(folder, args), args);
    let summary: Value = serde_json::from_str(&text).unwrap();
    let lines = metrics(folder, "run");
    let elapsed: f64 = lines[4..]
        .iter()
        .map(|line| number(line, "elapsed_ms"))
        .sum();
    close(number(&summary, "elapsed_s"), elapsed / 1e3);
    close(number(&summary, "samples_per_s"), 6.0 * 8e3 / elapsed);
    let waited = |line: &Value| number(line, "input_wait") * number(line, "elapsed_ms");
    let waited: f64 = lines[4..].iter().map(waited).sum();
    assert!((number(&summary, "input_wait") - waited / elapsed).abs() < 1e-9);
}

/// Regression test: the interval was fixed.
#[test]
fn lines_come_as_often_as_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let steps = |flags: &str| -> Vec<usize> {
        let _ = fs::remove_dir_all(folder.join("run"));
        let (_, errors) = run(folder, &format!("--held-out-batches 0 {flags}"));
        printed(&errors).iter().map(|(step, _)| *step).collect()
    };
    assert_eq!(steps("--steps 11 --log-every 4"), [1, 4, 8, 11]);
    assert_eq!(
        steps("--steps 60"),
        (1..=60)
            .filter(|own| *own == 1 || own % 3 == 0)
            .collect::<Vec<_>>()
    );
    assert_eq!(steps("--steps 4 --log-every 2 --quiet"), [0; 0]);
    let refused = gpipe(folder, "train --log-every 0");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// Regression test: the file and its purpose were not mentioned.
#[test]
fn a_trace_is_listed_with_what_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let (text, _) = run(folder.path(), "--steps 2 --trace t.json");
    let (_, trace) = text.split_once("\ntrace ").unwrap();
    let line = trace.lines().next().unwrap().trim();
    assert_eq!(line, "t.json: open it in https://ui.perfetto.dev");
    assert!(folder.path().join("t.json").is_file());
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    let (text, _) = run(folder.path(), "--steps 2");
    assert!(!text.contains("\ntrace "), "{text}");
}
