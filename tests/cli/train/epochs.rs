//! Length of a run, and the samples that it has seen.

use std::fs;
use std::path::Path;

use super::wrong_use::refused;
use super::{SMALL, train};
use crate::run::{config, gpipe, metrics, printed};

/// Forty rows, four of them held out.
fn table(folder: &Path) {
    let row = |row: i32| format!("{row},{},{}\n", row * 7 % 5, row % 2);
    let rows: String = (0..40).map(row).collect();
    fs::write(folder.join("t.csv"), format!("a,b,class\n{rows}")).unwrap();
}

const TABLE: &str = "train --model mlp --hidden 8 --depth 2 --data t.csv --batch 8 --micro 2 \
                     --threads-per-stage 1 --quiet --out";

#[test]
fn epochs_are_whole_batches_of_the_data_and_metrics_tell_how_far_a_run_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    printed(folder, &format!("{TABLE} run --epochs 2.5"));
    // 36 rows give four full batches of eight.
    let lines = metrics(folder, "run");
    assert_eq!(lines.len(), 10);
    let of = |step: usize, field: &str| lines[step - 1][field].as_f64().unwrap();
    assert_eq!((of(3, "samples"), of(10, "samples")), (24.0, 80.0));
    assert_eq!(lines[8]["epoch"], 2.0);
    assert!(lines[0].get("tokens").is_none());
    let times: Vec<f64> = (1..=10).map(|step| of(step, "time")).collect();
    assert!(times.is_sorted() && times[0] > 1.7e9, "{times:?}");
    // The configuration records steps, so it reproduces the run, also with more steps.
    assert_eq!(
        config(folder, "run")["train"]["steps"].as_integer(),
        Some(10)
    );
    printed(folder, "train --resume run --epochs 3 --quiet");
    let lines = metrics(folder, "run");
    assert_eq!((lines.len(), lines[11]["samples"].as_u64()), (12, Some(96)));
    let again = format!("{TABLE} again --config run/config.toml --steps 2");
    printed(folder, &again);
    assert_eq!(metrics(folder, "again").len(), 2);
}

/// Regression test: shares written as percentages were refused.
#[test]
fn what_is_held_out_may_be_a_percentage() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    for (run, share) in [("a", "25%"), ("b", "0.25")] {
        printed(
            folder,
            &format!("{TABLE} {run} --steps 1 --held-out {share}"),
        );
        let kept = config(folder, run)["data"]["held_out"].as_float();
        assert_eq!(kept, Some(0.25), "{share}");
    }
}

#[test]
fn of_a_text_as_many_tokens_as_it_has_are_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, "run", &["--steps", "5"]);
    let line = &metrics(folder, "run")[4];
    assert_eq!(
        (line["samples"].as_u64(), line["tokens"].as_u64()),
        (Some(40), Some(640))
    );
    // 2,400 characters, nine tenths for training: 134 windows of 16.
    assert_eq!(line["epoch"].as_f64(), Some(40.0 / 134.0));
}

#[test]
fn how_long_is_said_once_and_of_data_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let words = |args: &str| {
        let output = gpipe(folder, args);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let both = words(&format!("{TABLE} run --epochs 2 --steps 3"));
    assert!(
        both.contains("--epochs") && both.contains("--steps"),
        "{both}"
    );
    fs::write(folder.join("c.toml"), "[train]\nsteps = 3\nepochs = 2\n").unwrap();
    let file = words(&format!("{TABLE} run --config c.toml"));
    assert!(file.contains("leave one of them out"), "{file}");
    let made_up: Vec<&str> = "train --data synthetic --epochs 2 --out run"
        .split(' ')
        .collect();
    let small: Vec<&str> = SMALL.split_whitespace().collect();
    let small = small
        .chunks(2)
        .filter(|pair| pair[0] != "--steps")
        .flatten()
        .copied();
    let made_up: Vec<&str> = made_up.into_iter().chain(small).collect();
    refused(folder, &made_up, &["--epochs 2: synthetic data has no end"]);
}

#[test]
fn what_has_one_dimension_decays_only_where_it_is_to() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let of = |name: &str, flags: &str| {
        // After one update all else is the same.
        let once = "--steps 1 --optimizer sgd --lr 0.1";
        printed(folder, &format!("{TABLE} {name} {once} {flags}"));
        let newest = folder.join(name).join("checkpoints");
        let newest = gpipe::checkpoint::Checkpoint::newest(newest).unwrap();
        newest.weights().unwrap()
    };
    let plain = of("plain", "");
    let all = of("all", "--weight-decay 0.5");
    let some = of("some", "--weight-decay 0.5 --set optimizer.decay_1d=false");
    for ((plain, all), (name, some)) in plain.iter().zip(&all).zip(&some) {
        assert_ne!(plain.1, all.1, "{name}");
        let wanted = if some.dim() < 2 { plain } else { all };
        assert_eq!(*some, wanted.1, "{name}");
    }
    assert!(some.iter().any(|(_, own)| own.dim() < 2) && some.iter().any(|(_, own)| own.dim() > 1));
    let config = config(folder, "some");
    assert_eq!(config["optimizer"]["decay_1d"].as_bool(), Some(false));
}
