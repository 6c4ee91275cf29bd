//! What the commands write for other programs, and what they say where they cannot.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod book;
mod stdout;
mod typos;

use std::path::Path;
use std::process::{Command, Output};

fn gpipe(folder: &Path, args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
        .args(args.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Standard output of a run that succeeds.
#[track_caller]
fn printed(folder: &Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A model that is profiled in no time.
const PROFILE: &str = "profile --model mlp --inputs 8 --hidden 16 --depth 4 --outputs 2 --batch 8 \
                       --micro 4 --threads-per-stage 1 --budget 1";
