//! A run resumed into a new folder, stopped before its first step.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use super::no_room::limited;
use super::{assert_same, command, fails, gpt, newest, place, trained};

const FORK: [&str; 6] = ["--resume", "run", "--out", "fork", "--steps", "8"];

/// Trains a run of four steps, and the expected result of its fork.
fn begun(folder: &Path) {
    let flags = ["--steps", "4", "--set", "lr.steps=8", "--out", "run"];
    trained(folder, &gpt(&[&["--devices", "cpu"], &flags[..]].concat()));
    let whole = ["--resume", "run", "--out", "whole", "--steps", "8"];
    trained(folder, &whole);
}

/// Regression test: the folder could be resumed before it had a checkpoint, which began from random weights
/// and cut off the copied metrics.
#[test]
fn as_soon_as_a_fork_has_a_configuration_it_has_a_checkpoint() {
    let folder = place();
    let folder = folder.path();
    begun(folder);
    let mut child = command(folder, &FORK)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !folder.join("fork/config.toml").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it failed");
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(newest(folder, "fork").extras().step >= 4);
    trained(folder, &["--resume", "fork"]);
    assert_same(folder, "fork", "whole");
}

/// Regression test: a full disk led to a warning, and to a folder that would start from scratch.
#[test]
fn a_fork_that_cannot_save_its_first_checkpoint_is_no_run() {
    let folder = place();
    let folder = folder.path();
    begun(folder);
    let output = limited(folder, 48, &FORK);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for part in ["stage-0.safetensors", "raise the limit"] {
        assert!(errors.contains(part), "{errors}");
    }
    assert!(!folder.join("fork/config.toml").exists());
    let wanted = ["neither a configuration nor a checkpoint", "begin it again"];
    fails(folder, &["--resume", "fork"], 2, &wanted);
    // The remains do not block another attempt.
    trained(folder, &FORK);
    assert_same(folder, "fork", "whole");
}

/// Killed between its checkpoint and its configuration, which is then restored from the checkpoint.
#[test]
fn a_fork_without_a_configuration_goes_on_with_all_of_its_steps() {
    let folder = place();
    let folder = folder.path();
    begun(folder);
    let mut child = command(folder, &FORK)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !folder.join("fork/checkpoints/step-00000004").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it failed");
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = fs::remove_file(folder.join("fork/config.toml"));
    fails(folder, &FORK, 2, &["already holds a run", "--resume fork"]);
    trained(folder, &["--resume", "fork", "--steps", "8"]);
    assert_same(folder, "fork", "whole");
}

/// Regression test: `--quiet` hid the message.
#[test]
fn steps_that_are_trained_once_more_are_told_in_any_case() {
    let folder = place();
    let folder = folder.path();
    begun(folder);
    fs::remove_dir_all(folder.join("run/checkpoints")).unwrap();
    let told = trained(folder, &["--resume", "run", "--quiet"]);
    let wanted = "warning: run was stopped before its first checkpoint: it begins at step 1, and \
                  the 4 steps in its metrics.jsonl are trained once more";
    assert!(told.contains(wanted), "{told}");
}
