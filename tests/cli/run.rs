//! Runs the command and reads the files of its runs.
// A build without libtorch does not train.
#![cfg_attr(not(feature = "cli"), allow(dead_code))]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Arguments as a list, or as one text that is split at spaces.
pub(crate) trait Args {
    fn list(&self) -> Vec<&str>;
}

impl Args for str {
    fn list(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Args for String {
    fn list(&self) -> Vec<&str> {
        self.as_str().list()
    }
}

impl Args for [&str] {
    fn list(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Args for [&str; N] {
    fn list(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Args for Vec<&str> {
    fn list(&self) -> Vec<&str> {
        self.clone()
    }
}

/// The command in this folder, without environment variables that would configure it.
pub(crate) fn command(folder: &Path, args: &(impl Args + ?Sized)) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPIPE_") {
            command.env_remove(name);
        }
    }
    // Downloads are cached there.
    command.env("XDG_CACHE_HOME", folder.join(".cache"));
    command.args(args.list()).current_dir(folder);
    command
}

pub(crate) fn gpipe(folder: &Path, args: &(impl Args + ?Sized)) -> Output {
    command(folder, args).output().unwrap()
}

/// Standard output of a run that succeeds.
#[track_caller]
pub(crate) fn printed(folder: &Path, args: &(impl Args + ?Sized)) -> String {
    succeeded(gpipe(folder, args), args).0
}

/// Standard output and standard error of a run that succeeded.
#[track_caller]
pub(crate) fn succeeded(output: Output, args: &(impl Args + ?Sized)) -> (String, String) {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {errors}", args.list());
    (String::from_utf8(output.stdout).unwrap(), errors)
}

/// Lines of a run's metrics.
pub(crate) fn metrics(folder: &Path, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
    let line = |line| serde_json::from_str(line).unwrap();
    text.lines().map(line).collect()
}

/// Losses as written in the file: text, so that no digit is lost.
pub(crate) fn losses(folder: &Path, run: &str) -> Vec<String> {
    let lines = metrics(folder, run).into_iter();
    lines.map(|line| line["loss"].to_string()).collect()
}

/// The configuration that a run writes.
#[cfg(feature = "cli")]
pub(crate) fn config(folder: &Path, run: &str) -> toml::Table {
    let text = fs::read_to_string(folder.join(run).join("config.toml")).unwrap();
    text.parse().unwrap()
}
