//! A full disk: saving fails, while training and older checkpoints continue.

use std::env;
use std::path::Path;
use std::process::Command;

use gpipe::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Extras};

use super::run::{PLAIN, Run, adamw};

const FOLDER: &str = "GPIPE_TEST_FULL_DISK";

/// In a process whose files are limited to 8 KiB: a save fails, training continues.
fn limited(folder: &Path) {
    let mut run = Run::new(PLAIN, adamw());
    run.restore(folder);
    let mut checkpointer = Checkpointer::new(folder).unwrap();
    let first = run.step(3);
    checkpointer
        .save(&mut run.pipe, &run.optimizer, Extras::new(3))
        .unwrap();
    let second = run.step(4);
    let error = checkpointer.finish().unwrap_err();
    let CheckpointError::Write { path, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        path.ends_with(".writing-step-00000003/stage-0.safetensors"),
        "{error}"
    );
    assert!(error.to_string().contains("raise the limit"), "{error}");
    println!("\nlosses {first} {second} {}", run.step(5));
}

#[test]
fn a_limit_on_files_is_told_and_harms_neither_training_nor_older_checkpoints() {
    if let Some(folder) = env::var_os(FOLDER) {
        return limited(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(PLAIN, adamw());
    run.steps(1..=2);
    run.save(folder.path(), 2);
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\""])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("checkpoint::full_disk::a_limit_on_files_is_told_and_harms_neither_training_nor_older_checkpoints")
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let (printed, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{printed}{errors}");
    let found = printed
        .lines()
        .find_map(|line| line.strip_prefix("losses "));
    let expected: Vec<_> = run.steps(3..=5).iter().map(ToString::to_string).collect();
    assert_eq!(found, Some(expected.join(" ").as_str()), "{printed}");
    let listed = Checkpoint::list(folder.path()).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(Checkpoint::newest(folder.path()).unwrap().extras().step, 2);
    assert!(
        !folder.path().join(".writing-step-00000003").exists(),
        "its room is free again"
    );
}
