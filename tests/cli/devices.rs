//! All verbs accept the same notation for devices.

use std::path::Path;

use serde_json::Value;

#[cfg(feature = "cli")]
use crate::run::command;
use crate::run::gpipe;

fn here() -> &'static Path {
    Path::new(".")
}

/// Number of devices of a schedule.
fn simulated(devices: &str) -> usize {
    let args = format!("simulate --schedule 1f1b --devices {devices} --micro 4 --format json");
    let output = gpipe(here(), &args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{devices}: {errors}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all["peak_in_flight"].as_array().unwrap().len()
}

#[test]
fn verbs_that_decide_count_them() {
    for (devices, count) in [("4", 4), ("cpu,cpu", 2), ("cpu*3", 3), ("cuda:0-3,cpu", 5)] {
        assert_eq!(simulated(devices), count, "{devices}");
    }
    let wrong = gpipe(here(), "simulate --schedule 1f1b --devices cuda --micro 4");
    let errors = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        errors.contains("say how many devices there are"),
        "{errors}"
    );
}

/// The devices in a run's configuration, with this many simulated GPUs.
#[cfg(feature = "cli")]
fn trained(gpus: Option<usize>, devices: &[&str]) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("t.txt"),
        "to be or not to be ".repeat(40),
    )
    .unwrap();
    let args = "train --data t.txt --layers 30 --d-model 8 --heads 2 --seq 8 --batch 4 --micro 2 --steps 1 \
                --held-out 0 --threads-per-stage 1 --quiet --out run";
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.extend_from_slice(devices);
    let mut own = command(folder.path(), &args);
    if let Some(gpus) = gpus {
        own.env("GPIPE_SIMULATE_GPUS", gpus.to_string());
    }
    let output = own.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let config = std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    let line = config.lines().find(|line| line.starts_with("devices = "));
    let names = line.unwrap().split('"').skip(1).step_by(2);
    Ok(names.map(str::to_owned).collect())
}

#[cfg(feature = "cli")]
#[test]
fn runs_are_on_those_that_are_meant() {
    let named = |devices: &[&str]| trained(None, devices).unwrap();
    assert_eq!(named(&["--devices", "cpu*3"]), ["cpu"; 3]);
    assert_eq!(named(&["--devices", "2"]), ["cpu"; 2]);
    assert_eq!(named(&["--devices", "cpu", "--devices", "cpu"]), ["cpu"; 2]);
    assert_eq!(
        named(&["--set", "pipeline.devices=[\"cpu*2\", \"cpu\"]"]),
        ["cpu"; 3]
    );
    let cores = std::thread::available_parallelism().unwrap().get();
    // A stage has at least one layer.
    if cores <= 32 {
        assert_eq!(named(&["--devices", "auto"]), vec!["cpu"; cores]);
    }
    let wrong = trained(None, &["--devices", "cuda"]).unwrap_err();
    assert!(wrong.contains("cuda"), "{wrong}");
}

#[cfg(feature = "cli")]
#[test]
fn runs_are_on_the_gpus_that_are_meant() {
    if !crate::simulated::built() {
        return;
    }
    let named = |devices: &str| trained(Some(3), &["--devices", devices]);
    let all = ["cuda:0", "cuda:1", "cuda:2"];
    assert_eq!(named("cuda").unwrap(), all);
    assert_eq!(named("auto").unwrap(), all);
    assert_eq!(named("3").unwrap(), all);
    assert_eq!(named("cuda:1-2,cpu").unwrap(), ["cuda:1", "cuda:2", "cpu"]);
    assert_eq!(named("cuda:0*2").unwrap(), ["cuda:0"; 2]);
    let wrong = named("4").unwrap_err();
    assert!(
        wrong.contains("there are 3 CUDA devices, and 4 are asked for"),
        "{wrong}"
    );
}
