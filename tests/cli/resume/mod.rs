//! `gpipe-rs train` that is saved, stopped, killed, and resumed.

mod damaged;
mod devices;
mod exact;
mod forks;
mod killed;
mod killed_forks;
mod killed_ruins;
mod no_room;
mod own_training;
mod phases;
mod places;
mod precision;
mod processes;
mod repaired;
mod replicas;
mod ruined;
mod stopped;
mod tree;
mod weights;
mod wrong_use;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use gpipe::checkpoint::Checkpoint;
use gpipe::tch::{Kind, Tensor};

use crate::run::{self, succeeded};

/// A tiny run on a text, with dropout, so that random layers matter.
pub(crate) const GPT: &str = "--data text.txt --layers 2 --d-model 16 --heads 2 --seq 16 --batch 8 \
                              --micro 4 --dropout 0.1 --threads-per-stage 1 --warmup 2 --lr 0.01 \
                              --lr-schedule cosine --clip 0.5 --seed 3";

/// A folder with a text.
pub(crate) fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = "the whale! up helm, thar she blows! ".repeat(60);
    fs::write(folder.path().join("text.txt"), text).unwrap();
    folder
}

pub(crate) fn command(folder: &Path, flags: &[&str]) -> Command {
    let mut command = run::command(folder, "train");
    command.args(flags);
    command
}

pub(crate) fn train(folder: &Path, flags: &[&str]) -> Output {
    command(folder, flags).output().unwrap()
}

/// Like `train`, but must succeed; returns standard error.
#[track_caller]
pub(crate) fn trained(folder: &Path, flags: &[&str]) -> String {
    succeeded(train(folder, flags), flags).1
}

/// Like `train`, but must fail with this code, in one line that has all of these.
#[track_caller]
pub(crate) fn fails(folder: &Path, flags: &[&str], code: i32, wanted: &[&str]) {
    let output = train(folder, flags);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{flags:?}: {errors}");
    let last = errors.lines().last().unwrap_or_default();
    for part in wanted {
        assert!(last.contains(part), "{flags:?}: `{last}` has no `{part}`");
    }
    assert!(!errors.contains("panicked"), "{errors}");
}

/// [`GPT`] with more flags.
pub(crate) fn gpt<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    GPT.split_whitespace()
        .chain(flags.iter().copied())
        .collect()
}

/// Step and loss of each line, as written in the file.
pub(crate) fn losses(folder: &Path, run: &str) -> Vec<(u64, String)> {
    let lines = run::metrics(folder, run).into_iter();
    lines
        .map(|line| (line["step"].as_u64().unwrap(), line["loss"].to_string()))
        .collect()
}

pub(crate) fn newest(folder: &Path, run: &str) -> Checkpoint {
    Checkpoint::newest(folder.join(run).join("checkpoints")).unwrap()
}

/// Names and bits of all weights of the newest checkpoint.
pub(crate) fn weights(folder: &Path, run: &str) -> Vec<(String, Vec<f32>)> {
    let weights = newest(folder, run).weights().unwrap().into_iter();
    let numbers =
        |tensor: Tensor| Vec::try_from(&tensor.to_kind(Kind::Float).reshape([-1])).unwrap();
    weights
        .map(|(name, tensor)| (name, numbers(tensor)))
        .collect()
}

/// Checks that two runs have the same results bit for bit, with each step once.
#[track_caller]
pub(crate) fn assert_same(folder: &Path, run: &str, whole: &str) {
    let own = losses(folder, run);
    assert_eq!(own, losses(folder, whole), "losses of {run}");
    assert!(own.iter().map(|(step, _)| *step).eq(1..=own.len() as u64));
    let steps = |run| newest(folder, run).extras().step;
    assert_eq!(steps(run), steps(whole));
    assert_eq!(
        newest(folder, run).extras().get("data"),
        newest(folder, whole).extras().get("data")
    );
    assert_eq!(
        weights(folder, run),
        weights(folder, whole),
        "weights of {run}"
    );
}
