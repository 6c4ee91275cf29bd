//! Ctrl-C and SIGTERM.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::{assert_same, command, gpt, place, trained};

/// Starts a run that lasts, and waits until it has done some steps.
fn running(folder: &Path, flags: &[&str]) -> Child {
    let mut command = command(folder, flags);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let metrics = folder.join("run/metrics.jsonl");
    let begun = || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= 3);
    while !begun() {
        thread::sleep(Duration::from_millis(5));
    }
    child
}

fn signal(name: &str, child: &Child) {
    let sent = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

fn ended(child: Child) -> (Output, String) {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    (output, errors)
}

#[test]
fn a_signal_ends_the_run_after_the_step_and_it_goes_on_to_the_same_bits() {
    for name in ["-INT", "-TERM"] {
        let folder = place();
        let folder = folder.path();
        let flags = ["--devices", "cpu,cpu", "--checkpoint-every", "1000"];
        let flags = [&flags[..], &["--steps", "300", "--quiet"]].concat();
        let child = running(folder, &gpt(&[&flags[..], &["--out", "run"]].concat()));
        signal(name, &child);
        let (output, errors) = ended(child);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert!(errors.contains("of 300 and saved"), "{errors}");
        // The program as it was called, so that the line can be typed again.
        let program = env!("CARGO_BIN_EXE_gpipe-rs");
        let advice = format!("go on with: {program} train --resume run");
        assert!(errors.trim_end().ends_with(&advice), "{errors}");
        assert!(output.stdout.is_empty());
        let done = crate::losses(folder, "run").len() as u64;
        assert!((3..300).contains(&done));
        assert_eq!(crate::newest(folder, "run").extras().step, done);
        if name == "-INT" {
            let last = (done + 3).to_string();
            let own = ["--set", "lr.steps=300", "--steps", &last, "--out", "whole"];
            trained(folder, &gpt(&[&flags[..2], &own[..]].concat()));
            trained(folder, &["--resume", "run", "--steps", &last]);
            assert_same(folder, "run", "whole");
        }
    }
}

/// Held up between the two, it has them both when it goes on: the one that it takes second
/// ends it.
#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = place();
    let folder = folder.path();
    let child = running(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "100000", "--out", "run"]),
    );
    signal("-STOP", &child);
    signal("-INT", &child);
    signal("-TERM", &child);
    signal("-CONT", &child);
    let (output, errors) = ended(child);
    let code = output.status.code();
    assert!([Some(130), Some(143)].contains(&code), "{code:?}: {errors}");
    assert!(!errors.contains("go on with"), "{errors}");
}

#[test]
fn a_stopped_run_has_its_summary_as_json() {
    let folder = place();
    let folder = folder.path();
    let flags = [
        "--devices",
        "cpu",
        "--steps",
        "100000",
        "--json",
        "--out",
        "run",
    ];
    let child = running(folder, &gpt(&flags));
    signal("-INT", &child);
    let (output, errors) = ended(child);
    assert!(output.status.success(), "{errors}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let done = crate::losses(folder, "run").len();
    assert_eq!(summary["steps"], done);
    assert!(summary.get("held_out_loss").is_none());
}
