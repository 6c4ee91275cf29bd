//! What the commands write for other programs, and what they say where they cannot.

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

/// A model that is profiled in no time.
const PROFILE: &str = "profile --model mlp --inputs 8 --hidden 16 --depth 4 --outputs 2 --batch 8 \
                       --micro 4 --threads-per-stage 1 --budget 1";

/// A training run of no time.
const TRAIN: &str = "train --model mlp --inputs 8 --hidden 8 --depth 2 --outputs 2 --data synthetic \
                     --batch 4 --micro 2 --devices cpu --threads-per-stage 1 --quiet";

/// Longer than anything here takes on the busiest machine: what has not ended by then waits
/// for something that never comes.
const FOR_EVER: Duration = Duration::from_mins(5);

/// What a process of little output comes to; one that hangs is ended and fails the test.
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

/// What standard error says of a run that ends with `code`.
#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    errors
}
