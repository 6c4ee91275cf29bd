//! Runs of the command over several processes, each with its own GPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::lost::program;

/// Two stages: in one process, or in two.
fn train(folder: &Path, model: &[&str], over: usize) -> Vec<Vec<u8>> {
    let mut command = Command::new(program());
    if over > 1 {
        command.args(["launch", "--processes", "2", "--"]);
    }
    let devices = if over > 1 { "cuda:0" } else { "cuda:0,cuda:1" };
    let ended = command
        .args(["train", "--steps", "6", "--batch", "8", "--micro", "4"])
        .args(["--seed", "3", "--checkpoint-every", "3", "--quiet"])
        .args(["--clip", "0.1"])
        .args(["--devices", devices, "--out"])
        .arg(folder)
        .args(model)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{model:?} over {over}: {told}");
    let last = folder.join("checkpoints/step-00000006");
    let stages = ["stage-0.safetensors", "stage-1.safetensors"];
    let mut all: Vec<Vec<u8>> = stages.map(|name| fs::read(last.join(name)).unwrap()).into();
    let metrics = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let numbers = metrics.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["grad_norm"].as_f64().unwrap() > 0.1, "{line}");
        format!("{} {}", line["loss"], line["grad_norm"])
    });
    all.push(numbers.collect::<Vec<_>>().join("\n").into());
    all
}

/// Compares weights, optimizer states, losses, and the norms for clipping, which one process sums on a device
/// and several sum on the host.
pub(super) fn over_two() {
    for model in [
        &["--model", "mlp", "--hidden", "64", "--schedule", "zbv"][..],
        &[
            "--model",
            "gpt",
            "--layers",
            "2",
            "--d-model",
            "32",
            "--precision",
            "fp16",
        ],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let own = |over: usize| train(&folder.path().join(over.to_string()), model, over);
        let (one, two) = (own(1), own(2));
        let same = one.iter().zip(&two).map(|(one, two)| one == two);
        let same: Vec<bool> = same.collect();
        assert_eq!(
            same, [true; 3],
            "{model:?}: stages 0 and 1, losses and norms"
        );
    }
}
