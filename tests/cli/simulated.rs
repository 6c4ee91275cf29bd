//! `--simulate-gpus`. If the simulated GPUs are not built (`make simulated-gpus`), only the message about
//! that is tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::run::{command, config, gpipe, losses, printed, succeeded};

/// Whether the library is in a folder above the command.
pub(crate) fn built() -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    let library = "simulated-cuda/libgpipe_simulated_cuda.so";
    let built = program
        .ancestors()
        .any(|folder| folder.join(library).exists());
    if !built {
        println!("skipped: there are no simulated GPUs (`make simulated-gpus`)");
    }
    built
}

const TRAIN: &str = "train --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --micro 4 --steps 3 \
                     --threads-per-stage 1 --data text.txt";

fn trained(folder: &Path, out: &str, simulate: &[&str], devices: &str, more: &[&str]) -> Output {
    fs::write(folder.join("text.txt"), "the whale! up helm, ".repeat(90)).unwrap();
    let own = ["--devices", devices, "--out", out];
    let train: Vec<&str> = TRAIN.split_whitespace().collect();
    gpipe(folder, &[simulate, &train, &own, more].concat())
}

/// Extracts `loss 3.7112` of each line about a step.
fn losses_told(errors: &str) -> Vec<&str> {
    let steps = errors.lines().filter(|line| line.starts_with("step "));
    let loss = steps.filter_map(|line| line.split_once("loss "));
    loss.filter_map(|(_, rest)| rest.split_whitespace().next())
        .collect()
}

#[test]
fn training_on_them_gives_the_losses_of_the_cpu_and_says_where_they_are_from() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let simulate = ["--simulate-gpus", "2"];
    let on_gpus = trained(folder, "gpus", &simulate, "cuda:0,cuda:1", &[]);
    let (_, gpus) = succeeded(on_gpus, TRAIN);
    let (_, cpus) = succeeded(trained(folder, "cpus", &[], "cpu,cpu", &[]), TRAIN);
    assert_eq!(losses_told(&gpus).len(), 3, "{gpus}");
    assert_eq!(losses_told(&gpus), losses_told(&cpus));
    assert!(gpus.contains("on simulated GPUs (2): "), "{gpus}");
    assert!(!cpus.contains("simulated GPU"), "{cpus}");
    assert!(config(folder, "gpus").contains_key("pipeline"));
    let own = |run: &str| fs::read_to_string(folder.join(run).join("config.toml")).unwrap();
    assert!(own("gpus").contains("# on simulated GPUs (2): "));
    assert!(!own("cpus").contains("simulated"));
    // The environment variable has the same effect; a run without a stage on a GPU is unaffected.
    let mut again = command(folder, TRAIN);
    again.args(["--devices", "cuda:1,cuda:0", "--out", "again", "--json"]);
    let (json, _) = succeeded(
        again.env("GPIPE_SIMULATE_GPUS", "2").output().unwrap(),
        TRAIN,
    );
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["simulated_gpus"], "2");
    assert_eq!(losses(folder, "again"), losses(folder, "gpus"));
    // The threads that simulate devices share the cores with the host's threads, so a host share has no
    // meaning.
    let metrics = |run: &str| fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
    assert!(!metrics("gpus").contains("host_share"));
    assert!(!gpus.contains("host-bound"), "{gpus}");
    let json = trained(folder, "none", &simulate, "cpu,cpu", &["--json"]);
    let json: Value = serde_json::from_str(&succeeded(json, TRAIN).0).unwrap();
    assert_eq!(json.get("simulated_gpus"), None);
}

/// Regression test: two simulated devices were requested, and the run used the CPU without a note.
#[test]
fn devices_that_nobody_has_named_and_that_are_not_used_are_told_of() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let simulate = ["--simulate-gpus", "2"];
    let line = "note: 2 simulated GPUs are here and unused: --devices cuda";
    let said = |args: &[&str]| succeeded(gpipe(folder, args), args).1;
    fs::write(folder.join("text.txt"), "the whale! up helm, ".repeat(90)).unwrap();
    let train: Vec<&str> = TRAIN.split_whitespace().collect();
    let unnamed = [&simulate[..], &train, &["--out", "unnamed"]].concat();
    assert_eq!(said(&unnamed).matches(line).count(), 1);
    for (run, devices) in [("cpus", "cpu,cpu"), ("gpus", "cuda")] {
        let named = [&simulate[..], &train, &["--out", run, "--devices", devices]].concat();
        assert!(!said(&named).contains("unused"), "{devices}");
    }
    let alone = [&train[..], &["--out", "alone"]].concat();
    assert!(!said(&alone).contains("simulated GPUs"));
    for verb in [
        "profile --model gpt --quick --layers 1 --d-model 16 --heads 2 --context 16 --batch 4",
        "eval --run unnamed",
        "generate --run unnamed --prompt the --tokens 1",
    ] {
        let verb: Vec<&str> = verb.split_whitespace().collect();
        assert!(
            said(&[&simulate[..], &verb].concat()).contains(line),
            "{verb:?}"
        );
    }
}

#[test]
fn env_and_profiles_say_so() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let env = printed(folder, "--simulate-gpus=3,memory=2GiB env");
    for part in [
        "the GPUs are simulated",
        "3,memory=2GiB",
        "cuda:2",
        "simulated GPU 2",
        "2.0 GiB",
    ] {
        assert!(env.contains(part), "no {part}: {env}");
    }
    let env: Value =
        serde_json::from_str(&printed(folder, "--simulate-gpus 3 env --json")).unwrap();
    assert_eq!(
        (&env["cuda_simulated"], &env["cuda_devices"]),
        (&"3".into(), &3.into())
    );
    // The CUDA half of libtorch is missing.
    assert_eq!(env["cuda_libtorch"], Value::Null);
    let plain: Value = serde_json::from_str(&printed(folder, "env --json")).unwrap();
    assert_eq!(plain["cuda_simulated"], Value::Null);
    let profile = "--simulate-gpus 2 profile --model mlp --inputs 8 --hidden 16 --depth 2 --outputs 2 \
                   --batch 8 --devices cuda:0,cuda:1 --budget 1 -o profile.json";
    let text = printed(folder, profile);
    assert!(text.contains("cuda:0 (simulated)"), "{text}");
    let profile = fs::read_to_string(folder.join("profile.json")).unwrap();
    let profile: Value = serde_json::from_str(&profile).unwrap();
    assert_eq!(profile["device"], "cuda:0 (simulated)");
    // A plan made from it is for such devices, and a run on the CPU says so.
    printed(
        folder,
        "plan --profile profile.json --devices 2 --batch 8 -o plan.json",
    );
    let train = "train --model mlp --inputs 8 --hidden 16 --depth 2 --outputs 2 --batch 8 --steps 1 \
                 --devices cpu,cpu --plan plan.json --out run";
    let (_, errors) = succeeded(gpipe(folder, train), train);
    let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
    // On a busy machine other doubts precede it in the same note.
    let note = errors.split("note: of the profile that the plan was made from: ");
    let note = note.last().unwrap_or_default();
    assert!(note.contains("measured on cuda:0 (simulated)"), "{errors}");
    assert!(
        errors.contains("warning: the plan is for layers that were measured on cuda:0 (simulated)"),
        "{errors}"
    );
    // Regression test: without named devices it was silently trained on the CPU.
    let train = train
        .replace("--devices cpu,cpu", "")
        .replace("out run", "out there");
    let there = format!("--simulate-gpus 2 {train}");
    let (_, errors) = succeeded(gpipe(folder, &there), &there);
    assert!(
        !errors.contains("warning: the plan is for layers"),
        "{errors}"
    );
    let devices = &config(folder, "there")["pipeline"]["devices"];
    assert_eq!(devices.to_string(), "[\"cuda:0\", \"cuda:1\"]");
    let train = train.replace("out there", "out here");
    let (_, errors) = succeeded(gpipe(folder, &train), &train);
    assert!(
        errors.contains("this run does not compute there alone"),
        "{errors}"
    );
}

#[test]
fn timed_devices_write_what_ran_when() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let simulate = ["--simulate-gpus", "2,time=h100,trace=trace.json"];
    let (_, errors) = succeeded(
        trained(folder, "timed", &simulate, "cuda:0,cuda:1", &[]),
        TRAIN,
    );
    // The zeros are explained where they are shown and where they are stored.
    let kept = fs::read_to_string(folder.join("timed/config.toml")).unwrap();
    let metrics = fs::read_to_string(folder.join("timed/metrics.jsonl")).unwrap();
    assert!(metrics.contains("\"host_share\":"), "{metrics}");
    for text in [&errors, &kept] {
        let says =
            "nothing is computed (the numbers are zeros), and times are those of a model of h100";
        assert!(text.contains(says), "{text}");
        assert!(!text.contains("the numbers are the CPU's"), "{text}");
    }
    let trace = fs::read_to_string(folder.join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let on = |device: &str, unit: &str| {
        let own = events
            .iter()
            .filter(|event| event["pid"] == device && event["tid"] == unit);
        own.map(|event| {
            (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            )
        })
        .collect::<Vec<_>>()
    };
    for device in ["cuda:0", "cuda:1"] {
        let mut kernels = on(device, "kernels");
        kernels.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(kernels.len() > 100, "{device}");
        // A device runs one kernel at a time; times are in nanoseconds.
        for both in kernels.windows(2) {
            assert!(both[0].0 + both[0].1 <= both[1].0 + 0.002, "{both:?}");
        }
    }
    // Activations in one direction and gradients in the other: 4 micro-batches in 3 steps.
    assert!(on("cuda:0", "to cuda:1").len() >= 12 && on("cuda:1", "to cuda:0").len() >= 12);
}

/// Standard error of a refused command.
#[track_caller]
fn refused(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(output.stdout.is_empty());
    errors
}

#[test]
fn wrong_settings_are_refused_before_anything_is_trained() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (settings, part) in [
        (
            "none",
            "settings of simulated GPUs: `none`: the number of devices",
        ),
        ("0", "from 1 to"),
        ("4:memory=1GiB", "settings behind it after commas"),
        ("", "a value is required"),
        (",seed=1", "``: the number of devices"),
        ("2,speed=9", "unknown setting `speed=9`"),
        ("2,memory=9", "units are"),
        ("2,trace=trace.json", "trace= needs time="),
        ("2,time=h100,fail-kernel=3", "does nothing with time="),
        (
            "2,time=h100,trace=no/trace.json",
            "trace=no/trace.json cannot be written",
        ),
    ] {
        let simulate = ["--simulate-gpus", settings];
        let errors = refused(&trained(folder, "run", &simulate, "cpu,cpu", &[]));
        assert!(errors.contains(part), "no {part}: {errors}");
    }
    assert!(!folder.join("run").exists());
    // A verb's errors and exit codes are the same as without the flag.
    let simulate = ["--simulate-gpus", "2"];
    let errors = refused(&trained(folder, "run", &simulate, "cuda:0,cuda:2", &[]));
    assert!(errors.contains("2 CUDA devices"), "{errors}");
    refused(&gpipe(folder, "--simulate-gpus 2 train --no-such-flag"));
    let missing = gpipe(folder, "--simulate-gpus 2 eval missing");
    assert_eq!(
        missing.status.code(),
        gpipe(folder, "eval missing").status.code()
    );
}

#[test]
fn a_device_that_cannot_hold_a_layer_is_out_of_memory_in_words() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let simulate = ["--simulate-gpus", "2,memory=1B"];
    let failed = trained(folder.path(), "run", &simulate, "cuda:0,cuda:1", &[]);
    let errors = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{errors}");
    let says = "cuda:0 is out of memory: 2.0 MiB asked for, 1 B free";
    assert!(errors.contains(says), "{errors}");
    assert!(errors.contains("cannot be built"), "{errors}");
}

#[test]
fn faults_of_calls_say_that_they_were_asked_for() {
    if !built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for what in ["allocation", "copy", "page-locked"] {
        let settings = format!("2,fail-{what}=1@0");
        let simulate = ["--simulate-gpus", &settings];
        let failed = trained(folder.path(), what, &simulate, "cuda:0,cuda:1", &[]);
        let errors = String::from_utf8_lossy(&failed.stderr).into_owned();
        let says = format!("simulated cuda:0: {what} fails, as asked");
        assert!(errors.contains(&says), "{errors}");
    }
}

#[test]
fn without_a_gpu_a_run_is_told_of_simulated_ones() {
    if gpipe::device::cuda_available().is_ok() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let errors = refused(&trained(folder.path(), "run", &[], "cuda:0", &[]));
    assert!(errors.contains("--simulate-gpus N VERB"), "{errors}");
}

#[test]
fn the_flag_is_before_the_verb_and_has_a_value() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        "--simulate-gpus",
        "--simulate-gpus 2",
        "train --simulate-gpus 2",
    ] {
        refused(&gpipe(folder.path(), args));
    }
    for args in ["train --simulate-gpus 2", "train --simulate-gpus=2"] {
        let errors = refused(&gpipe(folder.path(), args));
        let says = "`--simulate-gpus` stands before the verb: `gpipe-rs --simulate-gpus 2 VERB …`";
        assert!(
            errors.contains(says) && !errors.contains("similar"),
            "{errors}"
        );
    }
    let help = printed(folder.path(), "--help");
    assert!(help.contains("--simulate-gpus <N[,SETTINGS]>"), "{help}");
}

/// A copy of the command with no simulated GPUs above it.
fn alone(folder: &Path) -> PathBuf {
    let alone = folder.join("gpipe-rs");
    let program = env!("CARGO_BIN_EXE_gpipe-rs");
    if fs::hard_link(program, &alone).is_err() {
        fs::copy(program, &alone).unwrap();
    }
    alone
}

#[test]
fn where_they_are_not_built_it_says_how_to_build_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |set: Option<(&str, &str)>, args: &[&str]| {
        let mut command = Command::new(alone(&folder.canonicalize().unwrap()));
        for name in ["GPIPE_SIMULATE_GPUS", "GPIPE_SIMULATED_CUDA"] {
            command.env_remove(name);
        }
        let output = command.args(args).envs(set).current_dir(folder).output();
        fs::remove_file(folder.join("gpipe-rs")).unwrap();
        refused(&output.unwrap())
    };
    let by_flag = run(None, &["--simulate-gpus", "2", "train", "--out", "run"]);
    let by_variable = run(
        Some(("GPIPE_SIMULATE_GPUS", "2")),
        &["train", "--out", "run"],
    );
    assert!(by_flag.contains("`make simulated-gpus`"), "{by_flag}");
    assert_eq!(by_flag, by_variable);
    let named = Some(("GPIPE_SIMULATED_CUDA", "/missing.so"));
    let errors = run(named, &["--simulate-gpus", "2", "env"]);
    assert!(errors.contains("cannot be loaded: /missing.so"), "{errors}");
    assert!(!folder.join("run").exists());
}
