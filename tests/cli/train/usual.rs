//! What a run takes where nobody says anything.

use std::fs;
use std::path::Path;

use gpipe::settings::Kernels;
use serde_json::Value;

use super::SMALL;
use crate::run::{config, gpipe, losses, metrics, printed, succeeded};

/// A convolutional net of six layers that trains in a moment: all parameters are behind the pixels.
const RESNET: &str = "--model resnet101 --blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --width 8 \
                      --image 64 --classes 3 --batch 16 --threads-per-stage 1";

/// What a run says on standard error.
#[track_caller]
fn said(folder: &Path, flags: &str) -> String {
    fs::write(
        folder.join("text.txt"),
        "the whale, the whale! up helm! ".repeat(80),
    )
    .unwrap();
    succeeded(gpipe(folder, &format!("train {flags}")), flags).1
}

/// The small model on a small text, for so many steps.
fn small(steps: usize, more: &str) -> String {
    let small = SMALL.replace("--steps 6", &format!("--steps {steps}"));
    format!("{small} --data text.txt {more}")
}

fn number(folder: &Path, run: &str, (table, key): (&str, &str)) -> toml::Value {
    config(folder, run)[table][key].clone()
}

/// One rate was for all: fine-tuning doubled the loss, and `sgd` hardly moved.
#[test]
fn the_learning_rate_is_that_of_the_case_and_is_said_with_why() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let rate = |run: &str| number(folder, run, ("optimizer", "lr"));
    let line = "the default of";
    let errors = said(folder, &small(1, "--out begun"));
    assert!(
        errors.contains("lr 0.003: the default of adamw for untrained weights"),
        "{errors}"
    );
    assert_eq!(rate("begun"), 0.003.into());
    let errors = said(folder, &small(1, "--optimizer sgd --out sgd"));
    assert!(errors.contains("lr 0.1: the default of sgd"), "{errors}");
    assert_eq!(rate("sgd"), 0.1.into());
    said(folder, &format!("{RESNET} --steps 1 --out images"));
    assert_eq!(rate("images"), 0.001.into());
    // Said by somebody, it is nobody's default.
    let errors = said(folder, &small(1, "--lr 0.002 --out said"));
    assert!(
        !errors.contains(line) && rate("said") == 0.002.into(),
        "{errors}"
    );
    printed(folder, "export --run begun -o exported");
    let flags = "--weights exported --data text.txt --batch 8 --steps 1";
    let errors = said(folder, &format!("{flags} --out tuned"));
    assert!(
        errors.contains("lr 5e-5: the default of adamw for trained weights (--weights)"),
        "{errors}"
    );
    assert_eq!(rate("tuned"), 5e-5.into());
    said(folder, &format!("{flags} --optimizer sgd --out tuned-sgd"));
    assert_eq!(rate("tuned-sgd"), 0.01.into());
    // A run keeps its own.
    let errors = said(folder, "--resume said --steps 2 --optimizer adamw");
    assert!(
        !errors.contains(line) && rate("said") == 0.002.into(),
        "{errors}"
    );
    let errors = said(folder, "--resume tuned --steps 2");
    assert!(
        !errors.contains(line) && rate("tuned") == 5e-5.into(),
        "{errors}"
    );
}

/// The line of the book doubled the loss of a trained model in ten steps.
#[test]
fn fine_tuning_a_run_on_its_own_data_never_raises_its_held_out_loss() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    said(folder, &small(60, "--eval-every 60 --lr 0.01 --out begun"));
    let of = |run: &str| -> Vec<f64> {
        let lines = metrics(folder, run).into_iter();
        lines
            .filter_map(|line| line.get("held_out_loss")?.as_f64())
            .collect()
    };
    let before = of("begun")[0];
    printed(folder, "export --run begun -o exported");
    for optimizer in ["adamw", "sgd"] {
        said(
            folder,
            &format!(
                "--weights exported --data text.txt --batch 8 --steps 20 --eval-every 5 \
                 --threads-per-stage 1 --optimizer {optimizer} --out {optimizer}"
            ),
        );
        let after = of(optimizer);
        assert_eq!(after.len(), 4);
        for loss in after {
            assert!(loss <= before, "{optimizer}: {loss} after {before}");
        }
    }
}

/// Four micro-batches left two devices idle for a fifth of the time.
#[test]
fn micro_batches_follow_from_devices_and_batch_and_stay_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let micro = |run: &str| number(folder, run, ("pipeline", "micro"));
    for (run, flags, expected) in [
        ("two", "--batch 32", 8),
        ("one", "--batch 32 --devices cpu", 8),
        ("four", "--batch 32 --devices cpu*4", 16),
        ("few", "--batch 6", 6),
        ("said", "--batch 32 --micro 3", 3),
    ] {
        let small = small(2, "")
            .replace("--batch 8", "")
            .replace("--micro 4", "");
        said(folder, &format!("{small} {flags} --out {run}"));
        assert_eq!(micro(run), expected.into(), "{run}");
    }
    // As many as two devices have: the same numbers.
    assert_eq!(losses(folder, "one"), losses(folder, "two"));
    said(folder, "--resume two --devices cpu*4 --steps 3");
    assert_eq!(micro("two"), 8.into());
}

/// Layers of a ResNet were cut by their parameters, of which the first ones have few and work most.
#[test]
fn layers_with_convolutions_are_cut_by_their_times() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let cut = |run: &str| -> Vec<i64> {
        let own = config(folder, run)["pipeline"]["balance"].clone();
        own.as_array()
            .unwrap()
            .iter()
            .map(|own| own.as_integer().unwrap())
            .collect()
    };
    let line = "cut by the times of the 7 layers, measured in ";
    let errors = said(folder, &format!("{RESNET} --steps 2 --out timed"));
    assert!(errors.contains(line), "{errors}");
    let timed = cut("timed");
    assert_eq!(timed.iter().sum::<i64>(), 7);
    // By the parameters stage 0 has all but the last two.
    assert!(timed[0] <= 4, "{timed:?}");
    // The run keeps its cut, and a cut that is given is taken.
    let errors = said(folder, "--resume timed --steps 3");
    assert!(
        !errors.contains("cut by the times") && cut("timed") == timed,
        "{errors}"
    );
    let errors = said(
        folder,
        &format!("{RESNET} --steps 2 --balance 5,2 --out given"),
    );
    assert!(
        !errors.contains("cut by the times") && cut("given") == [5, 2],
        "{errors}"
    );
    // No number depends on it.
    assert_eq!(losses(folder, "given"), losses(folder, "timed")[..2]);
    // Like blocks are cut by their parameters.
    assert!(!said(folder, &small(1, "")).contains("cut by the times"));
}

/// Each process would have found its own cut, and the pipeline would have been refused.
#[test]
fn rank_0_chooses_for_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let flags = format!("launch --processes 2 -- train {RESNET} --steps 2 --devices cpu --out run");
    let (_, errors) = succeeded(gpipe(folder.path(), &flags), &flags);
    assert_eq!(errors.matches("cut by the times of").count(), 1, "{errors}");
    assert_eq!(
        number(folder.path(), "run", ("pipeline", "micro")),
        4.into()
    );
}

/// It was said after the last step of the run, however long that was.
#[test]
fn an_uneven_cut_is_said_after_three_steps() {
    let folder = tempfile::tempdir().unwrap();
    let flags = small(
        8,
        "--layers 6 --balance 7,1 --devices cpu,cpu --batch 16 --micro 8",
    )
    .replace("--layers 2", "")
    .replace("--batch 8", "")
    .replace("--micro 4", "");
    let errors = said(folder.path(), &flags);
    let note = "note: stage 0 computes ";
    assert_eq!(errors.matches(note).count(), 1, "{errors}");
    let (before, after) = errors.split_once(note).unwrap();
    assert!(
        !before.contains("step     4/") && after.contains("step     4/"),
        "{errors}"
    );
    assert!(
        after.contains(" times as long as stage 1: ")
            && after.contains("gpipe-rs profile --model gpt --layers 6 ")
            && after.contains("cuts by time"),
        "{errors}"
    );
}

/// oneDNN's kernels were slower by nobody's choice, and a resume elsewhere would have had others.
#[test]
fn the_kernels_that_are_faster_here_are_taken_and_stay_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let kernels = |run: &str| {
        let own = config(folder, run)["pipeline"]["kernels"].clone();
        own.as_str().unwrap().to_owned()
    };
    let own = Kernels::auto();
    let other = match own {
        Kernels::Libtorch => Kernels::ONEDNN,
        Kernels::OneDnn { .. } => Kernels::Libtorch,
    };
    said(folder, &small(1, "--out own"));
    assert_eq!(kernels("own"), own.to_string());
    said(folder, &small(1, "--kernels auto --out auto"));
    assert_eq!(kernels("auto"), own.to_string());
    // As on a processor of the other kind.
    said(folder, &small(1, &format!("--kernels {other} --out other")));
    let errors = said(folder, "--resume other --steps 2");
    assert_eq!(kernels("other"), other.to_string());
    assert!(!errors.contains("pipeline.kernels"), "{errors}");
    let errors = succeeded(
        gpipe(folder, "train --config other/config.toml --out again"),
        "",
    )
    .1;
    assert_eq!(kernels("again"), other.to_string(), "{errors}");
    let wrong = gpipe(folder, "train --kernels mkl");
    let wrong = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.contains("must be auto, libtorch, onednn"), "{wrong}");
}

/// One step was trained on and thirty batches were measured, and letters drawn at random were printed.
#[test]
fn a_run_of_few_steps_measures_few_batches_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |flags: &str| {
        let text = "the whale, the whale! up helm! ".repeat(400);
        fs::write(folder.join("long.txt"), text).unwrap();
        let flags = small(1, flags).replace("text.txt", "long.txt");
        succeeded(gpipe(folder, &format!("train {flags}")), &flags)
    };
    let (told, errors) = run("");
    assert!(
        errors.contains("measuring the held-out loss (1 of 10 batches; --held-out-batches N "),
        "{errors}"
    );
    assert!(
        told.contains("held-out loss") && !told.contains("sample: "),
        "{told}"
    );
    let (_, errors) = run("--held-out-batches 3");
    assert!(
        errors.contains("held-out loss (3 of 10 batches; "),
        "{errors}"
    );
    let (_, errors) = run("--held-out-batches 10");
    assert!(errors.contains("held-out loss (10 batches; "), "{errors}");
    // What is measured again and again is measured on all.
    let (_, errors) = run("--eval-every 1 --json --out all");
    let told: Value = serde_json::from_str(&printed(folder, "eval --run all --json")).unwrap();
    assert_eq!(
        metrics(folder, "all")[0]["held_out_loss"],
        told["loss"],
        "{errors}"
    );
}
