//! The configuration of `gpipe-rs train`: files < the environment < `--set` < flags.

mod again;
mod examples;
mod layers;
mod wrong_use;

use std::path::Path;
use std::process::Output;

use crate::run::{command, config, losses, succeeded};

/// A tiny run on synthetic data.
const TINY: &str = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2 \
                    --steps 2 --threads-per-stage 1";

/// Runs `gpipe-rs train` with these flags, and only these configuration variables.
fn train(folder: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Output {
    let variables = variables.iter().copied();
    let mut command = command(folder, "train");
    command.args(flags).envs(variables).output().unwrap()
}

/// Like `train`, but must succeed; returns standard error.
#[track_caller]
fn trained(folder: &Path, flags: &[&str], variables: &[(&str, &str)]) -> String {
    succeeded(train(folder, flags, variables), flags).1
}

/// [`TINY`] without the flags that `flags` or a file set.
fn tiny<'a>(without: &[&str], flags: &[&'a str]) -> Vec<&'a str> {
    let all: Vec<&str> = TINY.split_whitespace().collect();
    let kept = all.chunks(2).filter(|pair| !without.contains(&pair[0]));
    kept.flatten().chain(flags).copied().collect()
}
