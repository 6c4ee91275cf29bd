//! Training that starts from weights of another source.

use std::fs;

use super::{assert_same, fails, gpt, losses, place, trained};
use crate::run::printed;

#[test]
fn a_run_begins_with_what_another_one_exported() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu,cpu", "--steps", "20", "--out", "first"]),
    );
    printed(folder, "export --run first -o exported");
    let small = "--data text.txt --batch 8 --threads-per-stage 1 --warmup 2";
    let begin = |more: &[&'static str]| -> Vec<&'static str> {
        let flags = small.split_whitespace().chain(["--weights", "exported"]);
        flags.chain(more.iter().copied()).collect()
    };
    trained(
        folder,
        &begin(&["--steps", "6", "--layers", "2", "--out", "second"]),
    );
    let loss = |run, step: usize| -> f64 { losses(folder, run)[step].1.parse().unwrap() };
    assert!(loss("second", 0) < 0.9 * loss("first", 0));

    // Such a run is resumed without the weights, and can be used.
    let part = ["--steps", "4", "--set", "lr.steps=6", "--out", "part"];
    trained(folder, &begin(&[&part[..2], &part[4..]].concat()));
    let wrong = ["--weights", "exported", "--model", "llama"];
    fails(
        folder,
        &wrong,
        2,
        &["they are those of a `gpt`", "`llama` (--model)"],
    );
    // Regression test: weights fitted any number of layers or heads; the rest was random or cut differently.
    for (flag, value, own) in [
        ("--layers", "3", "layers=2, not 3 (--layers)"),
        ("--heads", "4", "heads=2, not 4 (--heads)"),
        ("--d-model", "64", "d_model=16, not 64 (--d-model)"),
    ] {
        fails(folder, &["--weights", "exported", flag, value], 2, &[own]);
    }
    fs::write(folder.join("other.txt"), "quite another text ".repeat(120)).unwrap();
    let wrong = ["--weights", "exported", "--data", "other.txt"];
    fails(
        folder,
        &wrong,
        2,
        &["its tokens stand for other characters"],
    );
    // Regression test: `--weights` was accepted and ignored.
    let wrong = [
        "--resume",
        "first",
        "--steps",
        "25",
        "--weights",
        "exported",
    ];
    fails(
        folder,
        &wrong,
        2,
        &["model.weights = nothing", "without --resume"],
    );
    fs::remove_dir_all(folder.join("exported")).unwrap();
    trained(folder, &["--resume", "part", "--steps", "6"]);
    assert_same(folder, "part", "second");
    printed(folder, "eval --run part");
    fails(
        folder,
        &["--weights", "exported"],
        2,
        &["--weights", "exported"],
    );
}
