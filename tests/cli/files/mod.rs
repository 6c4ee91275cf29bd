//! Files that the commands write for other programs, and their messages if they cannot.

mod book;
mod help;
mod limits;
mod quoted;
mod special;
mod stdout;
mod typos;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::run::{gpipe, printed};

/// Profiles a tiny model.
const PROFILE: &str = "profile --model mlp --inputs 8 --hidden 16 --depth 4 --outputs 2 --batch 8 \
                       --micro 4 --threads-per-stage 1 --budget 1";

/// A tiny training run.
const TRAIN: &str = "train --model mlp --inputs 8 --hidden 8 --depth 2 --outputs 2 --data synthetic \
                     --batch 4 --micro 2 --devices cpu --threads-per-stage 1 --quiet";

/// Longer than any command here takes on the busiest machine: one that has not ended by then hangs.
const FOR_EVER: Duration = Duration::from_mins(5);

/// Output of a process that prints little; one that hangs is killed and fails the test.
#[track_caller]
fn ends(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > FOR_EVER {
            child.kill().unwrap();
            panic!("hangs: {command:?}: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Standard error of a run that exits with `code`.
#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    errors
}
