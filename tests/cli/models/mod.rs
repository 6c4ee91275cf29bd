//! `profile` and `train` for every model there is.

mod files;
pub(crate) mod own;
mod text;
mod tokens;
mod wrong_use;
mod zoo;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn gpipe(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpipe-rs"))
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// What a command prints; fails the test unless it succeeds.
#[track_caller]
fn printed(folder: &Path, args: &[&str]) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn as_json(folder: &Path, args: &[&str]) -> Value {
    let text = printed(folder, &[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
}

/// The losses as they stand in the file: text, so that no digit is lost on the way.
fn losses(folder: &Path, out: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(out).join("metrics.jsonl")).unwrap();
    let loss = |line| serde_json::from_str::<Value>(line).unwrap()["loss"].to_string();
    text.lines().map(loss).collect()
}

fn config(folder: &Path, out: &str) -> toml::Table {
    let text = fs::read_to_string(folder.join(out).join("config.toml")).unwrap();
    text.parse().unwrap()
}
