//! Runs of several processes have the results of one process, and print them once.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::run::{command, losses, succeeded};

const RUN: &str = "train --data text.txt --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 --micro 4 \
                   --dropout 0.1 --threads-per-stage 1 --warmup 2 --lr 0.01 --seed 3";

fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = "the whale! up helm, thar she blows! ".repeat(60);
    fs::write(folder.path().join("text.txt"), text).unwrap();
    folder
}

/// Runs as one process with two devices, and as two processes with one device each.
fn both(folder: &Path, flags: &str) -> [Output; 2] {
    let one = format!("{RUN} {flags} --devices cpu,cpu --out one");
    let two = format!("launch --processes 2 -- {RUN} {flags} --devices cpu --out two");
    [one, two].map(|args| command(folder, &args).output().unwrap())
}

/// The lines of a summary without times.
fn numbers(summary: &str) -> Vec<&str> {
    let said = ["loss ", "held-out loss", "skipped"];
    let chosen = |line: &&str| said.iter().any(|title| line.starts_with(title));
    summary.lines().filter(chosen).collect()
}

fn weights(folder: &Path, run: &str) -> Vec<Vec<u8>> {
    let newest = folder.join(run).join("checkpoints/step-00000008");
    let stage = |number| fs::read(newest.join(format!("stage-{number}.safetensors"))).unwrap();
    (0..2).map(stage).collect()
}

#[test]
fn it_comes_to_the_same_and_is_said_once() {
    for flags in [
        "--steps 8 --quiet",
        "--steps 8 --clip 0.5 --quiet --schedule auto",
        "--steps 8 --precision fp16 --quiet",
    ] {
        let folder = place();
        let folder = folder.path();
        let [one, two] = both(folder, flags).map(|output| succeeded(output, RUN));
        assert!(!numbers(&one.0).is_empty());
        assert_eq!(numbers(&one.0), numbers(&two.0), "{flags}");
        assert_eq!(two.0.matches("run folder").count(), 1, "{flags}");
        // Only the results.
        assert_eq!(
            two.0.lines().count(),
            numbers(&two.0).len() + 1,
            "{}",
            two.0
        );
        assert_eq!(losses(folder, "one"), losses(folder, "two"), "{flags}");
        assert_eq!(weights(folder, "one"), weights(folder, "two"), "{flags}");
    }
}

#[test]
fn files_and_json_are_those_of_one_process() {
    let folder = place();
    let folder = folder.path();
    let [one, two] = both(
        folder,
        "--steps 4 --quiet --json --trace t.json --report r.svg",
    )
    .map(|output| succeeded(output, RUN).0)
    .map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap());
    let keys = |value: &serde_json::Value| {
        let keys = value.as_object().unwrap().keys().cloned();
        // Depends on the machine's other load.
        keys.filter(|key| key != "other_programs_cores")
            .collect::<Vec<String>>()
    };
    assert_eq!(keys(&one), keys(&two));
    for key in ["held_out_loss", "loss_last", "steps"] {
        assert_eq!(one.get(key), two.get(key), "{key}");
    }
    let trace = fs::read_to_string(folder.join("t.json")).unwrap();
    for device in 0..2 {
        assert!(
            trace.contains(&format!("dev {device}")) || trace.contains("\"tid\""),
            "{trace}"
        );
    }
    assert!(
        fs::read_to_string(folder.join("r.svg"))
            .unwrap()
            .contains("</svg>")
    );
}

/// A plan for two devices also serves two processes with one device each. Regression test: the command
/// suggested for a bad cut had the devices of one process.
#[test]
fn a_cut_is_answered_with_the_devices_of_all_processes() {
    let folder = place();
    let uneven = "--steps 8 --balance 3,1";
    let [one, two] = both(folder.path(), uneven).map(|output| succeeded(output, RUN).0);
    for text in [one, two] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, cut) = words.split_once(" cut stage 0 computes ").unwrap();
        let (command, _) = cut.split_once("cuts by time").unwrap();
        // `profile` uses two CPUs by default.
        assert!(
            command.contains("gpipe-rs profile --model gpt ") && !command.contains("--devices"),
            "{cut}"
        );
    }
}

#[test]
fn a_plan_is_for_the_devices_of_all_processes() {
    let folder = place();
    let folder = folder.path();
    let model = "--model gpt --data text.txt --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8";
    let profile =
        format!("profile {model} --devices cpu,cpu --threads-per-stage 1 --quick --plan plan.json");
    succeeded(command(folder, &profile).output().unwrap(), &profile);
    let train = format!("train {model} --plan plan.json --steps 2 --quiet");
    let launched = |processes: usize, out: &str| {
        let args = format!("launch --processes {processes} -- {train} --devices cpu --out {out}");
        command(folder, &args).output().unwrap()
    };
    succeeded(launched(2, "two"), &train);
    let one = format!("{train} --devices cpu,cpu --out one");
    succeeded(command(folder, &one).output().unwrap(), &one);
    assert_eq!(losses(folder, "one"), losses(folder, "two"));
    let output = launched(3, "three");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let said = "it is for 2 devices, but --devices names 1 in each of 3 processes, 3 in all";
    assert!(errors.contains(said), "{errors}");
}

/// Whichever process gets the signal, all end after the same step, which is saved.
#[test]
fn a_signal_to_one_process_ends_all() {
    for (signal, rank) in [("-INT", 0), ("-TERM", 1)] {
        let folder = place();
        let folder = folder.path();
        let args =
            format!("launch --processes 2 -- {RUN} --steps 100000 --quiet --devices cpu --out run");
        let mut launcher = command(folder, &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let metrics = folder.join("run/metrics.jsonl");
        let lines = || fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
        while lines() < 3 {
            let ended = launcher.try_wait().unwrap();
            assert!(ended.is_none(), "it trains no more: {ended:?}");
            thread::sleep(Duration::from_millis(5));
        }
        let own = format!("RANK={rank}");
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process = entry.unwrap().file_name().into_string().unwrap();
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let words = fs::read(format!("/proc/{process}/environ")).ok()?;
            let is_child = status.contains(&format!("PPid:\t{}\n", launcher.id()));
            let is_rank = words
                .split(|byte| *byte == 0)
                .any(|word| word == own.as_bytes());
            (is_child && is_rank).then_some(process)
        });
        let all: Vec<String> = all.collect();
        assert_eq!(all.len(), 1);
        let sent = Command::new("kill").args([signal, &all[0]]).status();
        assert!(sent.unwrap().success());
        let ended = launcher.wait_with_output().unwrap();
        let (_, errors) = succeeded(ended, &args);
        assert_eq!(errors.matches("stopped after step").count(), 1, "{errors}");
        let step = losses(folder, "run").len();
        assert!(errors.contains(&format!("stopped after step {step} of 100000 and saved")));
        assert!(
            folder
                .join(format!("run/checkpoints/step-{step:08}"))
                .exists()
        );
    }
}

/// A folder in which the README's lines work, with variables for a tiny run.
fn as_in_the_readme(folder: &Path, line: &str) -> Command {
    let release = folder.join("target/release");
    fs::create_dir_all(&release).unwrap();
    let program = release.join("gpipe-rs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpipe-rs"), &program).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", release.display()))
        .envs([
            ("GPIPE_MODEL__LAYERS", "2"),
            ("GPIPE_MODEL__D_MODEL", "16"),
            ("GPIPE_MODEL__CONTEXT", "8"),
            ("GPIPE_TRAIN__STEPS", "2"),
            ("GPIPE_TRAIN__BATCH", "4"),
            ("GPIPE_DATA__HELD_OUT_BATCHES", "1"),
        ]);
    shell
}

/// The README's line that begins with `begin`.
fn readme(begin: &str) -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(readme).unwrap();
    let line = text.lines().find(|line| line.starts_with(begin));
    line.unwrap().to_owned()
}

#[test]
fn the_readme_trains_by_its_own_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let line = readme("gpipe-rs launch ");
    let (summary, _) = succeeded(
        as_in_the_readme(folder.path(), &line).output().unwrap(),
        &line,
    );
    assert!(summary.contains("run folder     runs/two"), "{summary}");
    assert_eq!(losses(folder.path(), "runs/two").len(), 2);
}

/// torchrun comes only with the Python package, of which a build needs only the libraries.
#[test]
fn the_readme_trains_by_torchrun() {
    if !Command::new("torchrun")
        .arg("--help")
        .output()
        .is_ok_and(|own| own.status.success())
    {
        println!("skipped: there is no torchrun that works, which a full PyTorch has (TORCH=full)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let line = readme("torchrun ");
    let (summary, _) = succeeded(
        as_in_the_readme(folder.path(), &line).output().unwrap(),
        &line,
    );
    assert!(summary.contains("run folder     runs/three"), "{summary}");
    assert_eq!(losses(folder.path(), "runs/three").len(), 2);
}

/// Regression test: the exit code was 1 although the command lines are wrong, whichever process fails first.
#[test]
fn ranks_of_different_folders_are_wrong_use() {
    let folder = place();
    let folder = folder.path();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let start = |rank: &str, out: &str| {
        let args = format!("{RUN} --steps 2 --devices cpu --quiet --out {out}");
        let words = [
            ("RANK", rank),
            ("LOCAL_RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ];
        let mut command = command(folder, &args);
        let piped = command.envs(words).stderr(Stdio::piped());
        piped.spawn().unwrap()
    };
    for started in [start("0", "one"), start("1", "two")] {
        let output = started.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let why = "the run of rank 1 is to be in `two`, and that of rank 0 in `one`";
        assert!(errors.contains(why), "{errors}");
    }
}
