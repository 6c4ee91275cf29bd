//! A resumed run has the results of an uninterrupted one.

use std::fs;
use std::path::Path;

use super::{assert_same, fails, gpt, losses, newest, place, train, trained, weights};

const STEPS: &str = "9";

/// Trains the whole run, and a part that ended after `steps` by its own limit; the learning rates are those
/// of the whole run.
fn whole_and_part(folder: &Path, part: &str) {
    let whole = gpt(&["--devices", "cpu,cpu", "--steps", STEPS, "--out", "whole"]);
    trained(folder, &whole);
    let rates = ["--set", "lr.steps=9", "--steps", part, "--out", "part"];
    trained(folder, &gpt(&[&["--devices", "cpu"], &rates[..]].concat()));
}

#[test]
fn over_one_then_three_then_two_stages_and_three_schedules() {
    let folder = place();
    let folder = folder.path();
    whole_and_part(folder, "3");
    let told = trained(
        folder,
        &[
            "--resume",
            "part",
            "--steps",
            "6",
            "--devices",
            "cpu,cpu,cpu",
            "--schedule",
            "gpipe",
        ],
    );
    assert!(
        told.contains("goes on after step 3 from part/checkpoints/step-00000003"),
        "{told}"
    );
    assert!(!told.contains("its losses are others"), "{told}");
    trained(
        folder,
        &[
            "--resume",
            "part",
            "--steps",
            STEPS,
            "--devices",
            "cpu,cpu",
            "--schedule",
            "zb-h1",
            "--balance",
            "3,1",
            "--recompute",
            "always",
        ],
    );
    assert_same(folder, "part", "whole");
}

#[test]
fn from_every_step_in_a_folder_of_its_own() {
    let folder = place();
    let folder = folder.path();
    let every = ["--checkpoint-every", "1", "--checkpoint-keep", "9"];
    trained(
        folder,
        &gpt(&[
            &["--devices", "cpu,cpu", "--steps", "5", "--out", "whole"],
            &every[..],
        ]
        .concat()),
    );
    for step in 1..5 {
        let cut = folder.join(format!("cut-{step}"));
        fs::create_dir_all(cut.join("checkpoints")).unwrap();
        for file in ["config.toml", "metrics.jsonl"] {
            fs::copy(folder.join("whole").join(file), cut.join(file)).unwrap();
        }
        let name = format!("checkpoints/step-{step:08}");
        fs::create_dir(cut.join(&name)).unwrap();
        for file in fs::read_dir(folder.join("whole").join(&name)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), cut.join(&name).join(file.file_name())).unwrap();
        }
        let (from, out) = (format!("cut-{step}"), format!("new-{step}"));
        let before = losses(folder, &from);
        trained(folder, &["--resume", &from, "--out", &out]);
        assert_same(folder, &out, "whole");
        // The original folder is unchanged, and no longer needed.
        assert_eq!(losses(folder, &from), before);
        assert_eq!(newest(folder, &from).extras().step, step);
        trained(folder, &["--resume", &from]);
        assert_same(folder, &from, "whole");
    }
}

#[test]
fn a_finished_run_says_so_and_goes_on_with_more_steps() {
    let folder = place();
    let folder = folder.path();
    whole_and_part(folder, "4");
    let before = (losses(folder, "part"), weights(folder, "part"));
    let told = trained(folder, &["--resume", "part"]);
    assert!(told.contains("all 4 steps are done"), "{told}");
    assert!(told.contains("give more with --steps N"), "{told}");
    assert_eq!((losses(folder, "part"), weights(folder, "part")), before);
    trained(folder, &["--resume", "part", "--steps", STEPS]);
    assert_same(folder, "part", "whole");
}

/// More steps must not stretch the schedule that the run started with.
#[test]
fn learning_rates_stay_those_of_the_schedule_that_was_begun() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "4", "--out", "run"]),
    );
    trained(folder, &["--resume", "run", "--steps", "6"]);
    let text = fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap();
    let rate = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["lr"].as_f64();
    let rates: Vec<f64> = text.lines().filter_map(rate).collect();
    assert_eq!(rates.len(), 6);
    assert!(rates[3] < rates[2], "{rates:?}");
    assert_eq!(rates[4..], [0.0; 2], "what is over stays at its end");
    let told = trained(
        folder,
        &["--resume", "run", "--steps", "8", "--set", "lr.steps=8"],
    );
    assert!(told.contains("lr.steps = 8, where the run had 4"), "{told}");
}

#[test]
fn made_up_data_and_the_events_go_on_too() {
    let folder = place();
    let folder = folder.path();
    let tiny = "--model mlp --inputs 4 --hidden 4 --depth 2 --outputs 2 --batch 4 --micro 2 \
                --threads-per-stage 1 --warmup 1";
    let flags = |more: &'static [&'static str]| -> Vec<&'static str> {
        tiny.split_whitespace()
            .chain(more.iter().copied())
            .collect()
    };
    trained(folder, &flags(&["--steps", "6", "--out", "whole"]));
    trained(
        folder,
        &flags(&["--steps", "4", "--out", "part", "--checkpoint-every", "2"]),
    );
    // As if killed after four steps, with the checkpoint of two.
    fs::remove_dir_all(folder.join("part/checkpoints/step-00000004")).unwrap();
    trained(folder, &["--resume", "part", "--steps", "6"]);
    assert_same(folder, "part", "whole");
    let events = |run: &str| {
        let files = fs::read_dir(folder.join(run)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("events.out.")).count()
    };
    assert_eq!((events("whole"), events("part")), (1, 2));
}

/// Steps of a run without a checkpoint are repeated; a run that seems to have lost its checkpoints is left
/// alone.
#[test]
fn without_a_checkpoint_it_begins_anew_or_says_what_to_do() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "4", "--out", "whole"]),
    );
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "4", "--out", "run"]),
    );
    fs::remove_dir_all(folder.join("run/checkpoints")).unwrap();
    let told = trained(folder, &["--resume", "run"]);
    assert!(
        told.contains("stopped before its first checkpoint"),
        "{told}"
    );
    assert_same(folder, "run", "whole");

    let every = ["--steps", "4", "--checkpoint-every", "1", "--out", "lost"];
    trained(folder, &gpt(&[&["--devices", "cpu"], &every[..]].concat()));
    fs::remove_dir_all(folder.join("lost/checkpoints")).unwrap();
    let wanted = [
        "has done 4 steps",
        "no checkpoint to go on from",
        "train --config",
    ];
    fails(folder, &["--resume", "lost"], 2, &wanted);
    assert_eq!(losses(folder, "lost").len(), 4);
}

#[test]
fn nothing_is_saved_where_nobody_wants_it() {
    let folder = place();
    let folder = folder.path();
    let flags = ["--steps", "2", "--checkpoint-every", "0", "--out", "run"];
    trained(folder, &gpt(&flags));
    let files = fs::read_dir(folder.join("run/checkpoints")).unwrap();
    let names = files.map(|file| file.unwrap().file_name());
    assert!(names.eq([".lock"]));
    let output = train(folder, &["--resume", "run"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn every_k_newest_are_kept_from_file_environment_and_flags() {
    let folder = place();
    let folder = folder.path();
    fs::write(
        folder.join("run.toml"),
        "[checkpoint]\nevery = 2\nkeep = 5\n",
    )
    .unwrap();
    let flags = gpt(&["--config", "run.toml", "--steps", "7", "--out", "run"]);
    let mut command = super::command(folder, &flags);
    assert!(
        command
            .env("GPIPE_CHECKPOINT__KEEP", "2")
            .output()
            .unwrap()
            .status
            .success()
    );
    let listed = gpipe::checkpoint::Checkpoint::list(folder.join("run/checkpoints")).unwrap();
    let steps: Vec<u64> = listed.iter().map(|one| one.step).collect();
    assert_eq!(steps, [6, 7]);
}

/// Regression test: the remaining lines were counted.
#[test]
fn a_run_whose_metrics_are_lost_knows_how_many_steps_it_has_done() {
    let folder = place();
    let folder = folder.path();
    let cpu = ["--devices", "cpu", "--steps", "3", "--out", "run"];
    trained(folder, &gpt(&cpu));
    fs::remove_file(folder.join("run/metrics.jsonl")).unwrap();
    let output = train(folder, &["--resume", "run", "--steps", "5", "--json"]);
    assert!(output.status.success());
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["steps"], 5);
}

/// Regression test: the last update was too large, which was not reported.
#[test]
fn a_run_whose_held_out_loss_is_not_finite_has_failed() {
    let folder = place();
    let wild = [
        "--devices",
        "cpu",
        "--steps",
        "1",
        "--warmup",
        "0",
        "--lr",
        "1e30",
    ];
    let flags: Vec<&str> = gpt(&[]).into_iter().take(14).chain(wild).collect();
    fails(
        folder.path(),
        &flags,
        1,
        &["the held-out loss is", "smaller --lr"],
    );
}
