//! A full disk and a folder that cannot be written.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::{assert_same, fails, gpt, losses, newest, place, trained};

/// Runs `train` in a process whose files are limited to `blocks` blocks of 512 bytes.
pub(crate) fn limited(folder: &Path, blocks: u32, flags: &[&str]) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .arg(env!("CARGO_BIN_EXE_gpipe-rs"));
    shell.arg("train").args(flags).current_dir(folder);
    shell.output().unwrap()
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_no_training_and_harms_no_older_one() {
    let folder = place();
    let folder = folder.path();
    let devices = ["--devices", "cpu,cpu"];
    trained(
        folder,
        &gpt(&[&devices[..], &["--steps", "8", "--out", "whole"]].concat()),
    );
    let begun = ["--steps", "2", "--set", "lr.steps=8", "--out", "run"];
    trained(folder, &gpt(&[&devices[..], &begun[..]].concat()));

    // A shard takes about 40 KiB, other files far less.
    let go_on = ["--resume", "run", "--steps", "8", "--checkpoint-every", "2"];
    let output = limited(folder, 48, &[&go_on[..], &["--json"]].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for step in [4, 6, 8] {
        let warning = format!("warning: the checkpoint of step {step} could not be written");
        assert!(errors.contains(&warning), "{errors}");
    }
    for part in [
        "stage-0.safetensors",
        "raise the limit",
        "newest whole one is of step 2",
    ] {
        assert!(errors.contains(part), "{errors}");
    }
    let last = errors.lines().last().unwrap();
    assert!(
        last.starts_with("error: the last checkpoint, of step 8,"),
        "{last}"
    );
    // All steps were trained and reported.
    assert_eq!(losses(folder, "run"), losses(folder, "whole"));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["steps"], 8);
    assert_eq!(newest(folder, "run").extras().step, 2);
    assert!(
        !folder
            .join("run/checkpoints/.writing-step-00000008")
            .exists()
    );

    trained(folder, &go_on);
    assert_same(folder, "run", "whole");
}

/// Metrics without disk space are kept until there is some; here there is none before the end.
#[test]
fn metrics_that_cannot_be_written_end_no_training_either() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "12", "--out", "whole"]),
    );
    let flags = [
        "--devices",
        "cpu",
        "--steps",
        "12",
        "--checkpoint-every",
        "1000",
        "--out",
        "run",
    ];
    let output = limited(folder, 4, &gpt(&flags));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let warnings = errors
        .matches("the metrics are written when they can be")
        .count();
    assert_eq!(warnings, 1, "{errors}");
    let own = losses(folder, "run");
    assert!(!own.is_empty() && own.len() < 12);
    assert_eq!(own, losses(folder, "whole")[..own.len()]);
}

/// Script for a small disk of its own: first full, then read-only, then writable.
const DISK: &str = "set -u; mount -t tmpfs -o size=512k none disk || exit 77
go() { \"$GPIPE\" train --resume disk/run --steps 8 --checkpoint-every 2; }
cp -r run disk/run
dd if=/dev/zero of=disk/filler bs=1k 2> /dev/null; truncate -s -40k disk/filler
go; echo \"full $?\"
rm disk/filler; mount -o remount,ro disk
go; echo \"read-only $?\"
mount -o remount,rw disk
go; echo \"again $?\"
cp -r disk/run after";

/// Mounting a file system needs privileges; without them, the file-size limit above is the only test.
#[test]
fn a_small_disk_that_is_full_or_read_only_is_told_and_nothing_is_lost() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "8", "--out", "whole"]),
    );
    let begun = ["--steps", "2", "--set", "lr.steps=8", "--out", "run"];
    trained(folder, &gpt(&[&["--devices", "cpu"], &begun[..]].concat()));
    fs::create_dir(folder.join("disk")).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--mount", "sh", "-c", DISK]);
    shell.env("GPIPE", env!("CARGO_BIN_EXE_gpipe-rs"));
    let output = match shell.current_dir(folder).output() {
        Ok(output) if output.status.code() != Some(77) && output.status.code() != Some(1) => output,
        _ => {
            println!("no file system can be mounted here");
            return;
        }
    };
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    for part in ["full 1\n", "read-only 1\n", "again 0\n"] {
        assert!(said.contains(part), "{said}{errors}");
    }
    for part in [
        "warning: the checkpoint of step 4 could not be written",
        "warning: the checkpoint of step 8 could not be written",
        "free some space",
        "newest whole one is of step 2",
        "Read-only file system (os error 30); choose a folder that you may write to\n",
    ] {
        assert!(errors.contains(part), "{errors}");
    }
    assert_same(folder, "after", "whole");
}

/// A file in place of the folder: nobody can write there, not even root.
#[test]
fn a_folder_of_checkpoints_that_cannot_be_is_told_before_anything_is_trained() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "2", "--out", "run"]),
    );
    fs::rename(folder.join("run/checkpoints"), folder.join("aside")).unwrap();
    fs::write(folder.join("run/checkpoints"), "a file").unwrap();
    let wanted = ["cannot create run/checkpoints", "choose another folder"];
    fails(folder, &["--resume", "run", "--steps", "3"], 1, &wanted);
    assert_eq!(losses(folder, "run").len(), 2);
}
