//! Defaults of a run.

use std::fs;
use std::path::Path;

use gpipe::settings::Kernels;
use serde_json::Value;

use super::SMALL;
use crate::run::{config, gpipe, losses, metrics, printed, succeeded};

/// A convolutional net of six layers that trains quickly; most parameters are in the last layers.
const RESNET: &str = "--model resnet101 --blocks1 1 --blocks2 1 --blocks3 1 --blocks4 1 --width 8 \
                      --image 64 --classes 3 --batch 16 --threads-per-stage 1";

/// Standard error of a run.
#[track_caller]
fn said(folder: &Path, flags: &str) -> String {
    fs::write(
        folder.join("text.txt"),
        "the whale, the whale! up helm! ".repeat(80),
    )
    .unwrap();
    succeeded(gpipe(folder, &format!("train {flags}")), flags).1
}

/// The small model on a small text, for `steps` steps.
fn small(steps: usize, more: &str) -> String {
    let small = SMALL.replace("--steps 6", &format!("--steps {steps}"));
    format!("{small} --data text.txt {more}")
}

fn number(folder: &Path, run: &str, (table, key): (&str, &str)) -> toml::Value {
    config(folder, run)[table][key].clone()
}

/// Regression test: one rate for all cases doubled the loss in fine-tuning, and was too low for `sgd`.
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
    // An explicit rate is no default.
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
    // A resumed run keeps its rate.
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

/// Regression test: the book's command doubled the loss of a trained model in ten steps.
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

/// Regression test: four micro-batches left two devices idle for a fifth of the time.
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
    // As many micro-batches as for two devices: the same numbers.
    assert_eq!(losses(folder, "one"), losses(folder, "two"));
    said(folder, "--resume two --devices cpu*4 --steps 3");
    assert_eq!(micro("two"), 8.into());
}

/// Regression test: a ResNet was cut by parameters, though its first layers have few and take most time.
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
    // A cut by parameters gives stage 0 all but the last two layers.
    assert!(timed[0] <= 4, "{timed:?}");
    // A resumed run keeps its cut, and an explicit cut is used.
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
    // The numbers do not depend on the cut.
    assert_eq!(losses(folder, "given"), losses(folder, "timed")[..2]);
    // Equal blocks are cut by parameters.
    assert!(!said(folder, &small(1, "")).contains("cut by the times"));
}

/// Rank 0 decides, since separate choices of each process would be refused.
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

/// Regression test: it was reported after the run's last step, however late.
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

/// Regression test: oneDNN's kernels were used where they are slower, and a resume elsewhere would have had
/// others.
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

/// Regression test: thirty batches were evaluated after one training step, and a sample of random letters was
/// printed.
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
    // Repeated evaluations use all held-out batches.
    let (_, errors) = run("--eval-every 1 --json --out all");
    let told: Value = serde_json::from_str(&printed(folder, "eval --run all --json")).unwrap();
    assert_eq!(
        metrics(folder, "all")[0]["held_out_loss"],
        told["loss"],
        "{errors}"
    );
}
