//! Runs with replicas of the pipeline: same numbers as with one, also when resumed with another number.

use std::fs;

use super::{GPT, assert_same, fails, gpt, place, trained};
use crate::run::{command, printed, succeeded};

#[test]
fn a_run_goes_on_with_other_replicas() {
    let folder = place();
    let folder = folder.path();
    let run = |out, steps, devices, replicas| {
        let flags = ["--steps", steps, "--out", out, "--devices", devices];
        let tree = ["--tree", "4", "--replicas", replicas];
        trained(folder, &gpt(&[&flags[..], &tree].concat()))
    };
    run("whole", "6", "cpu,cpu", "1");
    let rates = ["--set", "lr.steps=6"];
    let flags = ["--steps", "2", "--out", "part", "--tree", "4"];
    let two = ["--devices", "cpu,cpu,cpu,cpu", "--replicas", "2"];
    let said = trained(folder, &gpt(&[&flags[..], &two, &rates].concat()));
    assert!(said.contains("on 4 devices in 2 replicas"), "{said}");
    let configuration = fs::read_to_string(folder.join("part/config.toml")).unwrap();
    let wanted = "[parallel]\nreplicas = 2\ntree = 4\n";
    assert!(configuration.contains(wanted), "{configuration}");
    for (steps, devices, replicas, sharded) in [
        ("3", "cpu,cpu,cpu,cpu", "4", "true"),
        ("4", "cpu,cpu,cpu,cpu", "2", "true"),
        ("5", "cpu,cpu,cpu,cpu", "4", "false"),
        ("6", "cpu", "1", "false"),
    ] {
        let sharded = format!("parallel.shard_optimizer={sharded}");
        let others = [
            "--set",
            &sharded,
            "--devices",
            devices,
            "--replicas",
            replicas,
            "--steps",
            steps,
        ];
        let said = trained(folder, &[&["--resume", "part"], &others[..]].concat());
        assert!(!said.contains("losses are others"), "{said}");
    }
    assert_same(folder, "part", "whole");
}

/// First with owners in other processes, then with none.
#[test]
fn a_sharded_optimizer_goes_from_processes_to_one_and_back() {
    let folder = place();
    let folder = folder.path();
    let whole = ["--steps", "6", "--out", "whole", "--devices", "cpu,cpu"];
    trained(folder, &gpt(&[&whole[..], &["--tree", "4"]].concat()));
    let launch = |flags: &str| {
        let args = format!("launch --processes 4 -- train {flags} --devices cpu");
        succeeded(command(folder, &args).output().unwrap(), &args)
    };
    let begin = "--steps 2 --out part --tree 4 --replicas 2 --shard-optimizer --set lr.steps=6";
    launch(&format!("{GPT} {begin}"));
    let checkpoint = folder.join("part/checkpoints/step-00000002");
    for stage in 0..2 {
        let own = checkpoint.join(format!("stage-{stage}-replica-1.safetensors"));
        assert!(own.exists(), "{}", own.display());
    }
    let one = "--resume part --steps 4 --devices cpu --replicas 1";
    trained(folder, &one.split_whitespace().collect::<Vec<_>>());
    launch("--resume part --steps 6 --replicas 4");
    assert_same(folder, "part", "whole");
}

/// Saved within a round by two processes, and between rounds by one.
#[test]
fn local_steps_go_from_processes_to_one_and_back() {
    let folder = place();
    let folder = folder.path();
    let local = "--tree 2 --replicas 2 --local-steps 2 --set lr.steps=6";
    let whole = format!("--steps 6 --out whole --devices cpu,cpu {local}");
    trained(folder, &gpt(&whole.split_whitespace().collect::<Vec<_>>()));
    let launch = |flags: &str| {
        let args = format!("launch --processes 2 -- train {flags} --devices cpu");
        succeeded(command(folder, &args).output().unwrap(), &args)
    };
    launch(&format!("{GPT} --steps 3 --out part {local}"));
    // Within a round each replica has its own weights.
    let other = "--resume part --steps 4 --devices cpu,cpu --local-steps 3";
    let wanted = ["after 1 of 2", "2 replicas and local_steps = 2"];
    let other: Vec<&str> = other.split_whitespace().collect();
    fails(folder, &other, 2, &wanted);
    let one = "--resume part --steps 4 --devices cpu,cpu";
    trained(folder, &one.split_whitespace().collect::<Vec<_>>());
    launch("--resume part --steps 6");
    assert_same(folder, "part", "whole");
}

#[test]
fn replicas_that_cannot_be_are_refused() {
    let folder = place();
    let refused = |flags: &str, wanted: &[&str]| {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        fails(folder.path(), &gpt(&flags), 2, wanted);
    };
    refused(
        "--replicas 3 --tree 4 --devices cpu,cpu,cpu",
        &["--replicas", "power of two"],
    );
    refused(
        "--replicas 2 --devices cpu,cpu",
        &["--replicas", "--tree is 1", "2 leaves"],
    );
    refused(
        "--local-steps 4 --devices cpu,cpu",
        &["local steps are those of replicas", "several, or for no"],
    );
    refused(
        "--replicas 2 --tree 2 --devices cpu,cpu,cpu",
        &["--devices", "2 replicas"],
    );
}

#[test]
fn a_plan_for_replicas_is_trained_by() {
    let folder = place();
    let folder = folder.path();
    let sizes = "--layers 2 --d-model 16 --heads 2 --seq 16";
    let all = |text: String| printed(folder, &text.split_whitespace().collect::<Vec<_>>());
    all(format!(
        "profile --model gpt {sizes} --batch 8 --micro 4 --quick --vocab 40 -o profile.json"
    ));
    let plan = "plan --profile profile.json --devices 4 --micro 4 --batch 8 --replicas 2";
    all(format!("{plan} -o plan.json"));
    let flags =
        "--plan plan.json --vocab 40 --data synthetic --batch 8 --steps 2 --threads-per-stage 1";
    let train = |devices: &str, out: &str, more: &str| {
        format!("{sizes} {flags} --devices {devices} --out {out} {more}")
    };
    let own = |text: String| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let run = own(train("cpu,cpu,cpu,cpu", "own", ""));
    let said = trained(folder, &run.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("on 4 devices in 2 replicas"), "{said}");
    // The plan's placement cannot be derived from the order of devices here, which is reported.
    all("plan --profile profile.json --nodes 2 --per-node 2 --link-between 1GB/s,20us --micro 4 --batch 8 \
         --replicas 2 --pipeline 2 --neighbours stages --shard-optimizer always -o plan.json"
        .to_owned());
    let run = own(train("cpu*4", "placed", ""));
    let said = trained(folder, &run.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        said.contains("in the plan the 2 devices of a replica are neighbours"),
        "{said}"
    );
    let placed = fs::read_to_string(folder.join("placed/config.toml")).unwrap();
    assert!(placed.contains("shard_optimizer = true"), "{placed}");
    for (devices, more, wanted) in [
        ("cpu,cpu", "", "2 replicas of 2 devices, 4 in all"),
        ("cpu,cpu,cpu,cpu", "--replicas 4", "--replicas"),
    ] {
        let run = own(train(devices, "other", more));
        let flags: Vec<&str> = run.iter().map(String::as_str).collect();
        let output = super::train(folder, &flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}
