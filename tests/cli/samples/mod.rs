//! Data that a user brings, by the command alone: trained on, resumed, judged, profiled.

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

/// What a command prints as JSON.
#[track_caller]
fn as_json(folder: &Path, args: &str) -> Value {
    serde_json::from_str(&printed(folder, args)).unwrap()
}

/// What standard error says of a command that ends with this code, and no panic.
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

/// Trains six steps at once, and in two times three; gives what eval says of the last.
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

/// Of all runs here.
const FLAGS: &str = "--batch 8 --micro 2 --devices cpu,cpu";
