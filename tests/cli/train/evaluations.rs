//! `train --eval-every`: the held-out loss during training.

use std::fs;
use std::path::Path;

use gpipe::checkpoint::Checkpoint;
use gpipe::tch::Tensor;
use serde_json::Value;

use super::wrong_use;
use super::{SMALL, train};
use crate::run::{gpipe, losses, metrics, printed};

const DROPPING: [&str; 4] = ["--dropout", "0.1", "--seed", "3"];

fn refused(folder: &Path, args: &str, wanted: &[&str]) {
    let args: Vec<&str> = args.split_whitespace().collect();
    wrong_use::refused(folder, &args, wanted);
}

/// The held-out losses in the metrics, with their steps.
fn held_out(folder: &Path, run: &str) -> Vec<(u64, String)> {
    let lines = metrics(folder, run).into_iter();
    let told = lines.filter_map(|line| {
        let loss = line.get("held_out_loss")?.to_string();
        Some((line["step"].as_u64()?, loss))
    });
    told.collect()
}

fn weights(folder: &Path, run: &str) -> Vec<(String, Vec<f32>)> {
    let newest = Checkpoint::newest(folder.join(run).join("checkpoints")).unwrap();
    let weights = newest.weights().unwrap().into_iter();
    let numbers = |tensor: Tensor| Vec::try_from(&tensor.reshape([-1])).unwrap();
    weights
        .map(|(name, tensor)| (name, numbers(tensor)))
        .collect()
}

#[test]
fn training_is_none_the_other_over_stages_and_evaluations_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let of = |name: &str, flags: &[&str]| train(folder, name, &[&DROPPING[..], flags].concat());
    of("plain", &[]);
    for (name, devices) in [("one", "cpu"), ("three", "cpu,cpu,cpu")] {
        let told = of(name, &["--devices", devices, "--eval-every", "2"]);
        assert_eq!(losses(folder, name), losses(folder, "plain"));
        assert_eq!(weights(folder, name), weights(folder, "plain"));
        let all = held_out(folder, name);
        assert_eq!(all.iter().map(|own| own.0).collect::<Vec<_>>(), [2, 4, 6]);
        assert_eq!(told["held_out_loss"].to_string(), all[2].1);
        let step = told["best_step"].as_u64().unwrap();
        assert!(all.contains(&(step, told["best_held_out_loss"].to_string())));
        // The same loss as `eval` measures for that checkpoint.
        let best = printed(folder, &format!("eval --run {name} --best --json"));
        let best: Value = serde_json::from_str(&best).unwrap();
        assert_eq!(
            (&best["step"], &best["loss"]),
            (&told["best_step"], &told["best_held_out_loss"])
        );
    }
    assert_eq!(held_out(folder, "one"), held_out(folder, "three"));
}

#[test]
fn replicas_and_processes_evaluate_to_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "the whale, the whale! up helm, up helm! ".repeat(60);
    fs::write(folder.join("text.txt"), text).unwrap();
    let flags = format!(
        "{SMALL} --data text.txt --tree 2 --eval-every 2 --early-stopping 9 --quiet --checkpoint-keep 1"
    );
    printed(
        folder,
        &format!("train {flags} --devices cpu,cpu --out one"),
    );
    printed(
        folder,
        &format!("train {flags} --devices cpu*4 --replicas 2 --out replicas"),
    );
    printed(
        folder,
        &format!("launch --processes 2 -- train {flags} --devices cpu --out processes"),
    );
    for other in ["replicas", "processes"] {
        assert_eq!(held_out(folder, "one").len(), 3);
        assert_eq!(held_out(folder, "one"), held_out(folder, other));
        assert_eq!(weights(folder, "one"), weights(folder, other), "{other}");
        let link = |run: &str| fs::read_link(folder.join(run).join("best")).unwrap();
        assert_eq!(link("one"), link(other));
        assert!(folder.join(other).join("best/manifest.json").exists());
    }
}

#[test]
fn a_run_ends_early_says_so_and_goes_on_where_more_patience_is_had() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // The training text does not help to predict the other text.
    fs::write(folder.join("other.txt"), "!mleh pu ,elahw eht ".repeat(20)).unwrap();
    let flags = [
        "--steps",
        "60",
        "--lr",
        "0.02",
        "--eval-every",
        "2",
        "--early-stopping",
        "3",
        "--eval-data",
        "other.txt",
    ];
    let told = train(folder, "run", &flags);
    assert_eq!(told["early_stopped"], true, "{told}");
    let steps = told["steps"].as_u64().unwrap();
    assert!(steps < 60);
    assert_eq!(told["best_step"].as_u64(), Some(steps - 6));
    // The whole text was trained on.
    let config = crate::run::config(folder, "run");
    assert_eq!(config["data"]["held_out"].as_float(), Some(0.0));
    // `eval` uses the run's evaluation data.
    let judged = printed(folder, "eval --run run --json");
    let judged: Value = serde_json::from_str(&judged).unwrap();
    assert!(judged["data"].as_str().unwrap().ends_with("other.txt"));
    let again = gpipe(folder, "train --resume run --json");
    let words = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        words.contains(&format!(
            "early stopping after step {steps} of 60: 3 evaluations"
        )),
        "{words}"
    );
    let more = printed(
        folder,
        "train --resume run --early-stopping 4 --json --quiet",
    );
    let more: Value = serde_json::from_str(&more).unwrap();
    assert!(more["steps"].as_u64().unwrap() > steps);
}

#[test]
fn what_cannot_be_evaluated_is_told_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "the whale! ".repeat(99)).unwrap();
    fs::write(folder.path().join("other.txt"), "Ahab?".repeat(99)).unwrap();
    let run = format!("train {SMALL} --data text.txt --out run");
    for (flags, wanted) in [
        ("--early-stopping 3", "--eval-every N"),
        ("--eval-every 2 --held-out 0", "nothing is held out"),
        (
            "--eval-every 2 --held-out-batches 0",
            "--held-out-batches 0",
        ),
        ("--eval-data other.txt", "does not know 'A'"),
        ("--eval-data nowhere.txt", "--eval-data nowhere.txt"),
    ] {
        refused(folder.path(), &format!("{run} {flags}"), &[wanted]);
    }
    let made_up = format!("train {SMALL} --data synthetic --out run --eval-every 2");
    refused(
        folder.path(),
        &made_up,
        &["--eval-every 2: of made-up data"],
    );
    assert!(!folder.path().join("run").exists());
    train(folder.path(), "plain", &[]);
    refused(
        folder.path(),
        "eval --run plain --best",
        &["--best", "--eval-every N", "leave out --best"],
    );
}

/// Regression test: 0 was refused as an invalid number of steps, so a run could not be resumed without
/// evaluations.
#[test]
fn no_steps_between_evaluations_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = ["--eval-every", "0", "--early-stopping", "0"];
    train(folder, "plain", &flags);
    assert!(!folder.join("plain/best").exists());
    let often = ["--steps", "4", "--eval-every", "2", "--early-stopping", "9"];
    let told = train(folder, "often", &often);
    assert!(told["best_step"].is_u64(), "{told}");
    let lines = |run| crate::run::metrics(folder, run).into_iter();
    let evaluated = |run| {
        lines(run)
            .filter(|line| line["held_out_loss"].is_f64())
            .count()
    };
    assert_eq!((evaluated("plain"), evaluated("often")), (0, 2));
    let on = "train --resume often --steps 8 --eval-every 0 --early-stopping 0 --quiet";
    printed(folder, on);
    assert_eq!(evaluated("often"), 2);
}

/// Regression test: the newest checkpoint was called incomplete, and no helpful flag was named.
#[test]
fn what_stands_in_the_place_of_a_run_or_a_checkpoint_says_what_to_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, "run", &["--eval-every", "2"]);
    for (args, wanted) in [
        (
            "eval --checkpoint run",
            "this is the folder of a run: name it with --run run",
        ),
        (
            "eval --weights run",
            "this is the folder of a run: name it with --run run",
        ),
        ("train --weights run", "`export --run run -o DIR`"),
        ("eval --run run/checkpoints", "name the whole run, run"),
        ("eval --checkpoint run/best --best", "--best is for --run"),
    ] {
        refused(folder, args, &[wanted]);
    }
    fs::remove_dir_all(folder.join("run/checkpoints")).unwrap();
    refused(
        folder,
        "eval --run run --best",
        &["has lost its best checkpoint", "leave out --best"],
    );
}

/// Regression test: the held-out loss was printed in the step's line and again in the next.
#[test]
fn an_evaluation_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "the whale, the whale! up helm, up helm! ".repeat(60);
    fs::write(folder.join("text.txt"), text).unwrap();
    let flags = format!("train {SMALL} --data text.txt --eval-every 3");
    let output = gpipe(folder, &flags);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("held-out loss").count(), 2, "{said}");
    assert!(said.contains("step     3/6  held-out loss "), "{said}");
}
