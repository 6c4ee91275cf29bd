//! User data with the command alone: trained on, resumed, evaluated, profiled.

mod features;
mod gaps;
mod ignored;
mod images;
mod kinds;
mod own;
mod predicted;
mod programs;
mod regression;
mod table;
mod told;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::run::{config, gpipe, losses, printed};

/// JSON output of a command.
#[track_caller]
fn as_json(folder: &Path, args: &str) -> Value {
    serde_json::from_str(&printed(folder, args)).unwrap()
}

/// Checks that a command exits with this code, that standard error contains the wanted parts, and that it
/// does not panic.
#[track_caller]
fn fails(folder: &Path, args: &str, code: i32, wanted: &[&str]) {
    let output: Output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args}: {errors}");
    for part in wanted {
        assert!(
            errors.contains(part),
            "{args}: `{errors}` does not say `{part}`"
        );
    }
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Trains six steps at once, and twice three; returns the evaluation of the last.
#[track_caller]
fn trained(folder: &Path, flags: &str) -> Value {
    let train = |more: &str, run: &str| {
        let train = "train --quiet --json --checkpoint-every 3 --warmup 1 --threads-per-stage 1";
        as_json(folder, &format!("{train} {FLAGS} {more} --out {run}"))
    };
    let data = |steps: usize| format!("--steps {steps} {flags}");
    let whole = train(&data(6), "whole");
    assert!(whole["held_out_loss"].is_number(), "{whole}");
    train(&data(3), "half");
    printed(folder, "train --quiet --resume half --steps 6");
    assert_eq!(losses(folder, "half"), losses(folder, "whole"));
    let judged = as_json(folder, "eval --run half --json");
    assert_eq!(judged["loss"], whole["held_out_loss"]);
    assert_eq!(judged.get("accuracy"), whole.get("held_out_accuracy"));
    assert_eq!(judged["step"], 6);
    judged
}

/// Flags of all runs here.
const FLAGS: &str = "--batch 8 --micro 2 --devices cpu,cpu";
