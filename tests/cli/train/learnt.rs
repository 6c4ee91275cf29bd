//! Runs that learn nothing must say so.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::run::{gpipe, metrics};

/// A table whose target is the sum of eight columns, so large that gradients overflow in fp16.
fn large(folder: &Path) {
    let mut text = "a,b,c,d,e,f,g,h,y\n".to_owned();
    for row in 0..256 {
        let cells: Vec<i64> = (0..8)
            .map(|column| (row * 37 + column * 101) % 601 - 300)
            .collect();
        for cell in &cells {
            write!(text, "{cell},").unwrap();
        }
        writeln!(text, "{}.5", cells.iter().sum::<i64>() * 3000).unwrap();
    }
    fs::write(folder.join("d.csv"), text).unwrap();
}

fn train(folder: &Path, flags: &str) -> Output {
    let args = format!(
        "train --model mlp --hidden 32 --depth 2 --outputs 1 --loss mse --data d.csv --normalise none \
         --precision fp16 --batch 32 --micro 2 --held-out 0 --out run {flags}"
    );
    let _ = fs::remove_dir_all(folder.join("run"));
    gpipe(folder, &args)
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Regression test: it ended as a success, with a checkpoint of the initial weights.
#[test]
fn a_run_whose_updates_were_all_skipped_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    large(folder);
    for quiet in ["", "--quiet"] {
        let output = train(folder, &format!("--steps 8 --warmup 4 {quiet}"));
        let (text, errors) = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}{errors}");
        let last = errors.lines().last().unwrap();
        assert!(
            last.starts_with("error: 8 of 8 updates were skipped, so nothing was learnt: ")
                && last.contains("--precision bf16"),
            "{errors}"
        );
        let (_, updates) = text.split_once("\nupdates ").unwrap();
        let updates = updates.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(updates.starts_with("8 of 8 skipped, as "), "{text}");
        // The rate rose meanwhile.
        let warm_up = "the warm-up counts steps, not updates: 0 of its 4 steps made one";
        assert!(updates.contains(warm_up), "{text}");
        assert!(!text.contains("\nnext "), "{text}");
    }
    let summary = train(folder, "--steps 8 --json");
    assert_eq!(summary.status.code(), Some(1));
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert_eq!(summary["skipped_updates"], 8);
}

/// The loss scale falls until gradients fit; the updates skipped until then are reported, also when quiet.
#[test]
fn a_run_some_of_whose_updates_were_skipped_says_how_many() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    large(folder);
    let output = train(folder, "--steps 60 --quiet");
    let (text, errors) = said(&output);
    let lines = metrics(folder, "run");
    let skipped = lines.iter().filter(|line| line["skipped"] == true).count();
    assert!(0 < skipped && skipped < 60, "{skipped}");
    assert!(output.status.success(), "{errors}");
    assert!(
        text.contains(&format!("{skipped} of 60 skipped, as ")),
        "{text}"
    );
    let fine = "train --model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2 --steps 2 \
                --out fine --quiet";
    let (text, _) = said(&gpipe(folder, fine));
    assert!(!text.contains("updates"), "{text}");
}

/// Steps after the end of a schedule cost as much as others, and change nothing.
#[test]
fn a_run_whose_learning_rates_are_all_0_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2";
    let begun = format!("train {small} --lr-schedule linear --steps 4 --out run");
    assert!(gpipe(folder, &begun).status.success());
    let output = gpipe(folder, "train --resume run --steps 6 --quiet");
    let (text, errors) = said(&output);
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains(": steps 5 to 6 have the rate 0; "),
        "{errors}"
    );
    let told = "\nupdates        2 of 2 had the learning rate 0: nothing was learnt\n";
    assert!(text.contains(told), "{text}");
    // A schedule that ends within the run has learnt before.
    let within =
        format!("train {small} --lr-schedule linear --set lr.steps=4 --steps 6 --out within");
    let output = gpipe(folder, &within);
    let (_, errors) = said(&output);
    assert!(output.status.success(), "{errors}");
    let note = "note: the linear schedule ends at step 4: steps 5 to 6 have the rate 0; --set lr.steps=6 \
                stretches it";
    assert!(errors.contains(note), "{errors}");
}

/// Regression test: a warm-up as long as a cosine schedule had the rate 0 in every step.
#[test]
fn a_warm_up_of_all_steps_rises_to_the_rate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2";
    for schedule in ["cosine", "linear", "one-cycle"] {
        let args = format!(
            "train {small} --lr-schedule {schedule} --lr 0.01 --warmup 2 --steps 2 --out {schedule}"
        );
        let (text, errors) = said(&gpipe(folder, &args));
        let rates: Vec<f64> = metrics(folder, schedule)
            .iter()
            .map(|line| line["lr"].as_f64().unwrap())
            .collect();
        assert_eq!(rates, [0.005, 0.01], "{errors}");
        assert!(!text.contains("\nupdates "), "{text}");
    }
}

/// Regression test: the command that every run suggests continued with the rate 0, without a note.
#[test]
fn a_schedule_that_is_over_is_told_before_the_first_step_and_where_a_run_recommends_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (schedule, rate) in [("cosine", "0"), ("linear", "0"), ("one-cycle", "1.20e-8")] {
        let small = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2";
        let out = format!("--out {schedule}");
        let begun = format!("train {small} --lr-schedule {schedule} --lr 0.003 --steps 6 {out}");
        let (text, errors) = said(&gpipe(folder, &begun));
        assert!(!errors.contains(" the rate "), "{errors}");
        let next = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let on = format!("train --resume {schedule} --steps N --set lr.steps=N`");
        assert!(next.contains(&on), "{text}");
        let (_, errors) = said(&gpipe(
            folder,
            &format!("train --resume {schedule} --steps 6"),
        ));
        assert!(errors.contains("--steps N --set lr.steps=N"), "{errors}");
        let stretched =
            format!("train --resume {schedule} --steps 9 --set lr.steps=9 --out longer-{schedule}");
        let output = gpipe(folder, &stretched);
        assert!(output.status.success());
        assert!(!said(&output).1.contains(" the rate "));
        let (_, errors) = said(&gpipe(
            folder,
            &format!("train --resume {schedule} --steps 9 --quiet"),
        ));
        let note = format!(
            "note: the {schedule} schedule ended at step 6: steps 7 to 9 have the rate {rate}; \
             --set lr.steps=9 stretches it"
        );
        let first = errors
            .find(&note)
            .unwrap_or_else(|| panic!("{note}: {errors}"));
        assert!(
            errors.find("step     7/").is_none_or(|step| first < step),
            "{errors}"
        );
    }
    // Schedules without an end are not mentioned.
    for schedule in ["constant", "inverse-sqrt"] {
        let small = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2";
        let begun = format!("train {small} --lr-schedule {schedule} --steps 3 --out {schedule}");
        let (text, _) = said(&gpipe(folder, &begun));
        assert!(!text.contains("lr.steps"), "{text}");
        let (_, errors) = said(&gpipe(
            folder,
            &format!("train --resume {schedule} --steps 4"),
        ));
        assert!(!errors.contains(" the rate "), "{errors}");
    }
}

/// Regression test: it was evaluated once, at the end, without an explanation.
#[test]
fn evaluations_that_come_after_the_end_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("text.txt"), "the whale! up helm! ".repeat(80)).unwrap();
    let small = "train --data text.txt --layers 1 --d-model 16 --heads 2 --seq 16 --batch 4 --micro 2 --steps 3";
    let note = "note: eval.every = 5 is more than the 3 steps of this run";
    let (_, errors) = said(&gpipe(
        folder,
        &format!("{small} --eval-every 5 --out late"),
    ));
    assert!(errors.contains(note), "{errors}");
    let (_, errors) = said(&gpipe(folder, &format!("{small} --eval-every 3 --out now")));
    assert!(!errors.contains("eval.every"), "{errors}");
}
