//! Checks that a run's configuration reproduces the run.

use super::{config, losses, tiny, train, trained};

use crate::run::printed;
use std::fs;
use std::path::Path;

const GPT: &str = "--layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 4 --micro 4 \
                   --dropout 0.1 --seed 3 --warmup 2 --lr 0.0123456789 --clip 0.7";

/// Trains with these flags, then with the configuration that this wrote, from another folder.
#[track_caller]
fn twice(folder: &Path, flags: &[&str]) {
    trained(folder, &[flags, &["--out", "first"]].concat(), &[]);
    let elsewhere = folder.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let own = ["--config", "../first/config.toml", "--out", "../second"];
    trained(&elsewhere, &own, &[]);
    assert_eq!(losses(folder, "first"), losses(folder, "second"));
    assert!(losses(folder, "first").len() > 1);
    // The header names the command; the rest must be equal.
    assert_eq!(config(folder, "first"), config(folder, "second"));
}

#[test]
fn the_losses_are_the_same_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(
        folder.join("a \"text\".txt"),
        "the whale! up helm! ".repeat(80),
    )
    .unwrap();
    let mut flags: Vec<&str> = GPT.split_whitespace().collect();
    flags.extend(["--schedule", "zbv", "--recompute", "except-last"]);
    flags.extend(["--data", "a \"text\".txt"]);
    twice(folder, &flags);
}

/// Regression test: the file claimed to reproduce the run although the first steps had used another rate.
#[test]
fn a_file_whose_settings_were_changed_on_the_way_says_so_and_how() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let head = || {
        let text = fs::read_to_string(folder.join("run/config.toml")).unwrap();
        let lines = text.lines().take_while(|line| line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let same = "`train --config` of this file trains the same.";
    trained(folder, &tiny(&[], &["--out", "run", "--lr", "0.01"]), &[]);
    assert!(head()[0].ends_with(same), "{:?}", head());
    trained(folder, &["--resume", "run", "--steps", "4"], &[]);
    assert!(head()[0].ends_with(same), "{:?}", head());
    trained(
        folder,
        &["--resume", "run", "--steps", "6", "--lr", "0.001"],
        &[],
    );
    let changed = "# from step 5 on: optimizer.lr = 0.001, where the run had 0.01";
    assert!(
        head()[0].contains("does not train the same"),
        "{:?}",
        head()
    );
    assert_eq!(head()[1], changed);
    // The notice stays, and names all changes.
    trained(
        folder,
        &["--resume", "run", "--steps", "8", "--micro", "4"],
        &[],
    );
    assert!(
        head()[0].contains("does not train the same"),
        "{:?}",
        head()
    );
    assert_eq!(head()[1], changed);
    assert_eq!(
        head()[2],
        "# from step 7 on: pipeline.micro = 4, where the run had 2"
    );
    assert!(!head().iter().any(|line| line.contains(same)));
}

/// Without GPUs these settings have no effect, but must still be in the configuration.
#[test]
fn so_are_those_with_what_is_asked_of_devices() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let plain = tiny(&[], &["--recompute", "always", "--out", "plain"]);
    trained(folder, &plain, &[]);
    let flags = [
        "--recompute",
        "always",
        "--offload",
        "1",
        "--offload-optimizer",
        "--tf32",
        "--shard-optimizer",
        "--deterministic",
    ];
    let told = trained(
        folder,
        &tiny(&[], &[&flags[..], &["--out", "first"]].concat()),
        &[],
    );
    for idle in ["pipeline.tf32", "parallel.shard_optimizer"] {
        let said = format!("{idle} = true does nothing here");
        assert!(told.contains(&said), "{told}");
    }
    let own = [
        "--config",
        "first/config.toml",
        "--tf32=false",
        "--out",
        "second",
    ];
    trained(folder, &own, &[]);
    assert_eq!(losses(folder, "plain"), losses(folder, "first"));
    assert_eq!(losses(folder, "plain"), losses(folder, "second"));
    let of = |run: &str, key: &str| config(folder, run)["pipeline"][key].to_string();
    let keys = ["offload", "tf32", "deterministic"];
    assert_eq!(
        keys.map(|key| of("plain", key)),
        ["\"never\"", "false", "false"]
    );
    assert_eq!(keys.map(|key| of("first", key)), ["[1]", "true", "true"]);
    assert_eq!(keys.map(|key| of("second", key)), ["[1]", "false", "true"]);
    for run in ["first", "second"] {
        let offload = config(folder, run)["optimizer"]["offload"].as_bool();
        assert_eq!(offload, Some(true), "{run}");
    }
    // With other devices there is no stage 1 to offload, which must be reported.
    let own = [
        "--config",
        "first/config.toml",
        "--devices",
        "cpu",
        "--out",
        "third",
    ];
    let told = trained(folder, &own, &[]);
    assert!(told.contains("pipeline.offload = [1]"), "{told}");
    assert_eq!(of("third", "offload"), "\"never\"");
}

#[test]
fn so_are_those_on_the_built_in_text_and_on_made_up_data() {
    for data in [&["--data", "synthetic"][..], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let flags: Vec<&str> = GPT.split_whitespace().collect();
        twice(folder.path(), &[&flags[..], data].concat());
    }
}

/// TOML's own integers end at 2^63.
#[test]
fn a_seed_may_be_any_number_of_64_bits() {
    let folder = tempfile::tempdir().unwrap();
    let seed = u64::MAX.to_string();
    let flags = tiny(&[], &["--seed", &seed, "--out", "first"]);
    trained(folder.path(), &flags, &[]);
    let own = ["--config", "first/config.toml", "--out", "second"];
    trained(folder.path(), &own, &[]);
    let file = |run: &str| fs::read(folder.path().join(run).join("config.toml")).unwrap();
    assert_eq!(file("first"), file("second"));
    assert_eq!(
        losses(folder.path(), "first"),
        losses(folder.path(), "second")
    );
}

fn plan(folder: &Path) {
    let args = "profile --model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 \
                --threads-per-stage 1 --budget 1 --schedule 1f1b --devices cpu,cpu --micro 2 \
                --plan plan.json";
    printed(folder, args);
    // Stages with different recompute settings.
    let text = fs::read_to_string(folder.join("plan.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["recompute"] = serde_json::json!([true, false]);
    fs::write(folder.join("plan.json"), json.to_string()).unwrap();
}

#[test]
fn a_run_by_a_plan_needs_the_plan_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    plan(folder);
    let flags = tiny(
        &["--micro"],
        &["--set", "pipeline.plan=plan.json", "--out", "first"],
    );
    trained(folder, &flags, &[]);
    let pipeline = &config(folder, "first")["pipeline"];
    let recompute: Vec<bool> = pipeline["recompute"].clone().try_into().unwrap();
    assert_eq!(recompute, [true, false]);
    assert_eq!(pipeline.get("plan"), None);
    let own = ["--config", "first/config.toml", "--out", "second"];
    trained(folder, &own, &[]);
    assert_eq!(config(folder, "first"), config(folder, "second"));

    // A plan replaces what a lower layer says of the same settings.
    let over = [
        &own[..3],
        &["third", "--plan", "plan.json", "--schedule", "gpipe"],
    ]
    .concat();
    assert_eq!(train(folder, &over, &[]).status.code(), Some(2));
    let over = &over[..over.len() - 2];
    trained(folder, over, &[]);
    assert_eq!(config(folder, "first"), config(folder, "third"));
    // A plan's per-stage decisions are dropped when the number of stages changes.
    let told = trained(
        folder,
        &[&own[..3], &["fourth", "--devices", "cpu"]].concat(),
        &[],
    );
    assert!(
        told.contains("pipeline.recompute = [true, false]"),
        "{told}"
    );
}
