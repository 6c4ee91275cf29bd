//! The configuration of `gpipe-rs train`: files < the environment < `--set` < flags.

mod again;
mod layers;
mod wrong_use;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A run of no time on data that is made up.
const TINY: &str = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2 \
                    --steps 2 --threads-per-stage 1";

/// `gpipe-rs train` with these flags, and with these variables alone of those that are keys.
fn train(folder: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPIPE_") {
            command.env_remove(name);
        }
    }
    let variables = variables.iter().copied();
    let command = command.arg("train").args(flags).envs(variables);
    command.current_dir(folder).output().unwrap()
}

/// The same where it must succeed; gives what it says on standard error.
#[track_caller]
fn trained(folder: &Path, flags: &[&str], variables: &[(&str, &str)]) -> String {
    let output = train(folder, flags, variables);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{flags:?}: {errors}");
    errors
}

/// [`TINY`] without the flags that `flags` or a file are to say.
fn tiny<'a>(without: &[&str], flags: &[&'a str]) -> Vec<&'a str> {
    let all: Vec<&str> = TINY.split_whitespace().collect();
    let kept = all.chunks(2).filter(|pair| !without.contains(&pair[0]));
    kept.flatten().chain(flags).copied().collect()
}

fn config(folder: &Path, out: &str) -> toml::Table {
    let text = fs::read_to_string(folder.join(out).join("config.toml")).unwrap();
    text.parse().unwrap()
}

/// The losses as they stand in the file: text, so that no digit is lost on the way.
fn losses(folder: &Path, out: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(out).join("metrics.jsonl")).unwrap();
    let loss = |line| serde_json::from_str::<Value>(line).unwrap()["loss"].to_string();
    text.lines().map(loss).collect()
}
