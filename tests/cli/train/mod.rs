//! `gpipe-rs train` and `env` as users run them.

mod comparison;
mod epochs;
mod evaluations;
mod input;
mod learnt;
mod notes;
mod processes;
mod report;
mod schedules;
mod speed;
mod usual;
mod wrong_use;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run::{gpipe, losses, metrics, printed};
use wrong_use::refused;

const SMALL: &str = "--layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --steps 6 \
                     --threads-per-stage 1 --micro 4";

/// Runs a small training on a small text; fails the test unless it succeeds. Flags override those of
/// [`SMALL`].
fn train(folder: &Path, out: &str, flags: &[&str]) -> Value {
    let text = folder.join("text.txt");
    fs::write(&text, "the whale, the whale! up helm, up helm! ".repeat(60)).unwrap();
    let mut args = vec!["train", "--data", "text.txt", "--json", "--out", out];
    let small: Vec<&str> = SMALL.split_whitespace().collect();
    let replaced = |pair: &&[&str]| flags.contains(&pair[0]);
    args.extend(small.chunks(2).filter(|pair| !replaced(pair)).flatten());
    args.extend(flags);
    let text = printed(folder, &args);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: not one JSON object"))
}

#[test]
fn losses_are_the_same_to_the_last_bit_over_devices_balances_and_schedules() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [&[&str]; 7] = [
        &["--devices", "cpu"],
        &["--devices", "cpu"],
        &["--devices", "cpu,cpu", "--balance", "1,3"],
        &[
            "--devices",
            "cpu,cpu",
            "--balance",
            "3,1",
            "--schedule",
            "gpipe",
        ],
        &["--devices", "cpu,cpu,cpu", "--balance", "1,1,2"],
        &[
            "--devices",
            "cpu,cpu,cpu",
            "--balance",
            "2,1,1",
            "--schedule",
            "gpipe",
        ],
        &["--devices", "cpu,cpu,cpu,cpu", "--schedule", "gpipe"],
    ];
    for (number, case) in cases.iter().enumerate() {
        let mut flags = vec!["--dropout", "0.1", "--seed", "1"];
        flags.extend(*case);
        train(folder.path(), &number.to_string(), &flags);
        let (own, first) = (
            losses(folder.path(), &number.to_string()),
            losses(folder.path(), "0"),
        );
        assert_eq!(own.len(), 6);
        assert_eq!(own, first, "{case:?}");
    }
    train(folder.path(), "seed", &["--dropout", "0.1", "--seed", "2"]);
    assert_ne!(losses(folder.path(), "seed"), losses(folder.path(), "0"));
}

#[test]
fn a_run_leaves_its_configuration_a_line_a_step_and_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let summary = train(folder.path(), "run", &["--devices", "cpu,cpu"]);
    let steps = metrics(folder.path(), "run");
    assert_eq!(steps.len(), 6);
    for (number, line) in steps.iter().enumerate() {
        assert_eq!(line["step"], number + 1);
        for key in [
            "loss",
            "samples_per_s",
            "tokens_per_s",
            "step_ms",
            "bubble_measured",
            "bubble_predicted",
        ] {
            assert!(
                line[key].as_f64().is_some_and(f64::is_finite),
                "{key} in {line}"
            );
        }
    }
    assert_eq!(summary["steps"], 6);
    assert_eq!(summary["loss_first"], steps[0]["loss"]);
    assert_eq!(summary["loss_last"], steps[5]["loss"]);
    for key in [
        "held_out_loss",
        "tokens_per_s",
        "step_ms_median",
        "bubble_measured",
        "bubble_predicted",
    ] {
        assert!(
            summary[key].as_f64().is_some_and(f64::is_finite),
            "{key} in {summary}"
        );
    }
    let run = folder.path().join(summary["run_dir"].as_str().unwrap());
    let config: toml::Table = fs::read_to_string(run.join("config.toml"))
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(config["pipeline"]["micro"].as_integer(), Some(4));
    assert_eq!(config["model"]["name"].as_str(), Some("gpt"));
    assert_eq!(config["lr"]["warmup"].as_integer(), Some(1));
    assert_eq!(config["model"]["context"].as_integer(), Some(16));
    assert_eq!(config["model"]["dropout"].as_float(), Some(0.0));
    assert_eq!(config["pipeline"]["chunks"].as_integer(), Some(1));
    assert_eq!(config["pipeline"]["recompute"].as_str(), Some("never"));
    let balance = config["pipeline"]["balance"].as_array();
    assert_eq!(balance.map(Vec::len), Some(2));
    let trace: Value = serde_json::from_slice(&fs::read(run.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = events.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(
        spans,
        2 * 2 * 4,
        "two stages, forward and backward, four micro-batches"
    );
}

#[test]
fn run_folders_are_numbered_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.txt"), "abcdefgh ".repeat(100)).unwrap();
    let mut args = vec!["train", "--data", "t.txt", "--quiet"];
    args.extend(SMALL.split_whitespace());
    for number in ["1", "2"] {
        let output = gpipe(folder.path(), &args);
        assert!(output.status.success());
        assert!(output.stderr.is_empty(), "--quiet");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("held-out loss") && text.contains(&format!("runs/{number}")),
            "{text}"
        );
        assert!(
            folder
                .path()
                .join("runs")
                .join(number)
                .join("metrics.jsonl")
                .exists()
        );
    }
    args.extend(["--out", "runs/1"]);
    refused(folder.path(), &args, &["already holds a run"]);
}

#[test]
fn env_says_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let output = gpipe(folder.path(), &["env", "--json"]);
    assert!(output.status.success());
    let env: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(env["libtorch"].as_str().unwrap().starts_with("2.11.0"));
    assert!(env["cpu_cores"].as_u64().unwrap() > 0);
    assert!(env["cuda_devices"].as_u64() > Some(0) || env["cuda_missing"].is_string());
    let text = String::from_utf8(gpipe(folder.path(), &["env"]).stdout).unwrap();
    assert!(
        text.contains("libtorch  2.11.0") && text.contains("cuda"),
        "{text}"
    );
}

#[test]
fn env_says_how_mkl_rounds_and_heeds_the_environment() {
    let mode = |own: Option<&str>, json: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"));
        command.arg("env").env_remove("MKL_CBWR");
        command.args(json.then_some("--json"));
        command.envs(own.map(|own| ("MKL_CBWR", own)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let named = |own| -> Value {
        let env: Value = serde_json::from_str(&mode(own, true)).unwrap();
        env["mkl_cbwr"].clone()
    };
    assert_eq!(named(None), "AUTO");
    assert_eq!(named(Some("")), "AUTO");
    assert_eq!(named(Some("COMPATIBLE")), "COMPATIBLE");
    assert_eq!(named(Some("AUTO,STRICT")), "AUTO,STRICT");
    let (own, told) = (mode(None, false), mode(Some("COMPATIBLE"), false));
    assert!(own.contains("MKL_CBWR=AUTO: the same bits"), "{own}");
    assert!(
        told.contains("MKL_CBWR=COMPATIBLE, as the environment says"),
        "{told}"
    );
}

/// Regression test: printing to a closed pipe panicked.
#[test]
fn a_closed_standard_output_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "the whale! ".repeat(100)).unwrap();
    let mut train = vec!["train", "--data", "text.txt", "--quiet"];
    train.extend(SMALL.split_whitespace());
    for args in [vec!["env"], vec!["env", "--json"], train] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
            .args(&args)
            .current_dir(folder.path())
            .stdout(writer)
            .status()
            .unwrap();
        assert!(status.success(), "{args:?}: {status}");
    }
}

/// Without a GPU, `cuda:0` is wrong use; with one, it trains.
#[test]
fn cuda_is_used_where_it_is_there_and_explained_where_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let env = gpipe(folder.path(), &["env", "--json"]).stdout;
    let env: Value = serde_json::from_slice(&env).unwrap();
    if env["cuda_devices"].as_u64() > Some(0) {
        train(folder.path(), "cuda", &["--devices", "cuda:0,cuda:0"]);
    } else {
        let args = ["train", "--steps", "1", "--devices", "cuda:0"];
        refused(folder.path(), &args, &["`cuda:0`"]);
    }
}
