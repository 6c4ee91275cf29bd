//! Runs in half precision, and their loss scale.

use std::fs;

use super::{assert_same, fails, gpt, newest, place, trained};

#[test]
fn half_precision_goes_on_with_its_loss_scale() {
    for precision in ["bf16", "fp16"] {
        let folder = place();
        let folder = folder.path();
        let flags = ["--precision", precision, "--devices", "cpu,cpu"];
        let whole = ["--steps", "7", "--out", "whole"];
        trained(folder, &gpt(&[&flags[..], &whole[..]].concat()));
        let part = ["--steps", "3", "--set", "lr.steps=7", "--out", "run"];
        trained(folder, &gpt(&[&flags[..], &part[..]].concat()));
        let saved = newest(folder, "run");
        let scale = saved.extras().get("loss_scale");
        assert_eq!(scale.is_some(), precision == "fp16");
        trained(
            folder,
            &["--resume", "run", "--steps", "5", "--devices", "cpu"],
        );
        trained(
            folder,
            &[
                "--resume",
                "run",
                "--steps",
                "7",
                "--devices",
                "cpu,cpu,cpu",
            ],
        );
        assert_same(folder, "run", "whole");
        let metrics = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
        let scales = metrics.matches("\"loss_scale\":65536.0").count();
        assert_eq!(scales, if precision == "fp16" { 7 } else { 0 });
    }
}

#[test]
fn the_precision_comes_from_file_environment_and_flag() {
    let folder = place();
    let folder = folder.path();
    fs::write(
        folder.join("run.toml"),
        "[pipeline]\nprecision = \"fp16\"\n",
    )
    .unwrap();
    let cases: [(&[&str], Option<&str>, &str); 4] = [
        (&[], None, "f32"),
        (&["--config", "run.toml"], None, "fp16"),
        (&["--config", "run.toml"], Some("bf16"), "bf16"),
        (&["--precision", "f32"], Some("bf16"), "f32"),
    ];
    for (number, (flags, variable, wanted)) in cases.into_iter().enumerate() {
        let out = number.to_string();
        let own = ["--steps", "2", "--devices", "cpu", "--out", &out];
        let mut command = super::command(folder, &gpt(&[&own[..], flags].concat()));
        if let Some(value) = variable {
            command.env("GPIPE_PIPELINE__PRECISION", value);
        }
        assert!(command.output().unwrap().status.success());
        let text = fs::read_to_string(folder.join(&out).join("config.toml")).unwrap();
        assert!(
            text.contains(&format!("precision = \"{wanted}\"")),
            "{text}"
        );
    }
    let wrong = ["`bf61` is no precision: did you mean `bf16`?"];
    fails(folder, &["--set", "pipeline.precision=bf61"], 2, &wrong);
}

/// A resumed run may use another precision, with a note.
#[test]
fn another_precision_is_said() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&[
            "--precision",
            "fp16",
            "--devices",
            "cpu",
            "--steps",
            "2",
            "--out",
            "run",
        ]),
    );
    let told = trained(
        folder,
        &["--resume", "run", "--steps", "3", "--precision", "f32"],
    );
    assert!(
        told.contains("pipeline.precision = \"f32\", where the run had \"fp16\""),
        "{told}"
    );
}

/// Regression test: skipped steps kept a run alive for 29 steps, whose checkpoints replaced all good ones.
#[test]
fn a_run_in_half_precision_whose_loss_is_not_finite_ends_and_keeps_its_good_checkpoints() {
    let folder = place();
    let folder = folder.path();
    let flags = [
        "--precision",
        "fp16",
        "--devices",
        "cpu",
        "--checkpoint-every",
        "1",
    ];
    let good = [
        "--checkpoint-keep",
        "2",
        "--steps",
        "3",
        "--set",
        "lr.steps=20",
        "--out",
        "run",
    ];
    trained(folder, &gpt(&[&flags[..], &good[..]].concat()));
    let astray = [
        "--resume",
        "run",
        "--steps",
        "20",
        "--lr",
        "1e30",
        "--optimizer",
        "adamw",
    ];
    fails(
        folder,
        &astray,
        1,
        &["the loss is NaN at step 7", "smaller --lr"],
    );
    let kept = fs::read_dir(folder.join("run/checkpoints")).unwrap();
    let mut kept: Vec<String> = kept
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step-"))
        .collect();
    kept.sort();
    // The fourth step's update diverged, so its checkpoint is not kept.
    assert_eq!(kept, ["step-00000002", "step-00000003"]);
}
