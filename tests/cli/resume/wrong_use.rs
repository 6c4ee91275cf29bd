//! Runs that cannot be resumed.

use std::fs;

use super::{fails, gpt, losses, place, trained, weights};

#[test]
fn what_would_train_something_else_is_refused_and_changes_nothing() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "3", "--out", "run"]),
    );
    fs::write(folder.join("other.txt"), "quite another text ".repeat(120)).unwrap();
    fs::write(
        folder.join("same.txt"),
        fs::read(folder.join("text.txt")).unwrap(),
    )
    .unwrap();
    let before = (losses(folder, "run"), weights(folder, "run"));
    let config = fs::read(folder.join("run/config.toml")).unwrap();
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (
            &["--layers", "3"],
            2,
            &["model.layers = 2", "cannot go on with 3"],
        ),
        (&["--model", "llama"], 2, &["model.name = \"gpt\""]),
        // Regression test: the message was that the data does not fit that model.
        (
            &["--model", "mlp"],
            2,
            &["model.name = \"gpt\" and cannot go on with \"mlp\""],
        ),
        (
            &["--seed", "4"],
            2,
            &[
                "train.seed = 3",
                "cannot go on with 4: leave train.seed (--seed) as it was",
            ],
        ),
        (&["--optimizer", "sgd"], 2, &["optimizer.name = \"adamw\""]),
        (&["--data", "other.txt"], 2, &["other characters"]),
        (&["--micro", "9"], 2, &["--micro 9 is more than --batch 8"]),
        (&["--steps", "x"], 2, &["--help"]),
        (
            &["--set", "checkpoint.evry=3"],
            2,
            &["did you mean `checkpoint.every`?"],
        ),
    ];
    for (flags, code, wanted) in cases {
        let more = ["--resume", "run", "--set", "train.steps=5"];
        fails(folder, &[&more[..], flags].concat(), code, wanted);
    }
    assert_eq!((losses(folder, "run"), weights(folder, "run")), before);
    assert_eq!(fs::read(folder.join("run/config.toml")).unwrap(), config);

    // The same text at another path counts as the same.
    let moved = ["--resume", "run", "--steps", "4", "--data", "same.txt"];
    trained(folder, &moved);
    let told = trained(
        folder,
        &[
            "--resume", "run", "--steps", "5", "--micro", "2", "--lr", "0.1",
        ],
    );
    for said in [
        "pipeline.micro = 2, where the run had 4",
        "optimizer.lr = 0.1",
    ] {
        assert!(told.contains(said), "{told}");
    }
}

/// Regression test: the error named a flag that nobody had given, and not that it is the remedy.
#[test]
fn data_that_has_moved_is_said_to_be_named_anew() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "2", "--out", "run"]),
    );
    fs::rename(folder.join("text.txt"), folder.join("moved.txt")).unwrap();
    let on = ["--resume", "run", "--steps", "3"];
    fails(
        folder,
        &on,
        2,
        &["text.txt", "run/config.toml names it", "with --data PATH"],
    );
    trained(folder, &[&on[..], &["--data", "moved.txt"]].concat());
}

#[test]
fn what_is_no_run_is_named() {
    let folder = place();
    let folder = folder.path();
    fs::create_dir(folder.join("empty")).unwrap();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "2", "--out", "run"]),
    );
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &["--resume", "nowhere"],
            &["--resume nowhere: there is no such folder"],
        ),
        (
            &["--resume", "text.txt"],
            &["this is a file, not a run folder"],
        ),
        (
            &["--resume", "empty"],
            &["it has neither config.toml nor checkpoints"],
        ),
        (&["--resume-fallback"], &["--help"]),
        (
            &["--out", "run", "--steps", "2"],
            &["already holds a run", "--resume run"],
        ),
    ];
    for (flags, wanted) in cases {
        fails(folder, flags, 2, wanted);
    }
}

#[test]
fn two_processes_do_not_train_in_one_folder() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "2", "--out", "run"]),
    );
    let held = gpipe::checkpoint::Checkpointer::new(folder.join("run/checkpoints")).unwrap();
    let go_on = ["--resume", "run", "--steps", "3"];
    fails(
        folder,
        &go_on,
        2,
        &["another process is writing checkpoints here"],
    );
    drop(held);
    trained(folder, &go_on);
}

/// Regression test: the rate stayed in the configuration, so that the run failed on each resume without the
/// flag.
#[test]
fn a_rate_with_which_the_run_fails_at_once_is_not_what_it_resumes_with_later() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "3", "--out", "run"]),
    );
    let config = || fs::read_to_string(folder.join("run/config.toml")).unwrap();
    let before = config();
    let ruin = [
        "--resume",
        "run",
        "--steps",
        "9",
        "--lr",
        "1e38",
        "--set",
        "lr.steps=20",
    ];
    fails(folder, &ruin, 1, &["try a smaller --lr"]);
    assert_eq!(config(), before);
    trained(
        folder,
        &["--resume", "run", "--steps", "6", "--lr", "0.001"],
    );
    assert!(config().contains("lr = 0.001") && config() != before);
}

/// A run's sizes are fixed: `--layers 3` was advised, and refused.
#[test]
fn more_stages_than_layers_are_not_told_to_take_more_layers() {
    let folder = place();
    let folder = folder.path();
    trained(
        folder,
        &gpt(&["--devices", "cpu", "--steps", "2", "--out", "run"]),
    );
    let more = ["--resume", "run", "--steps", "3"];
    for (flags, wanted) in [
        (
            "--devices cpu*5",
            "only 4 layers (embed to head): use fewer devices",
        ),
        (
            "--devices cpu*4 --schedule zbv",
            "use fewer devices or chunks, or another schedule",
        ),
    ] {
        let flags: Vec<&str> = more.into_iter().chain(flags.split(' ')).collect();
        fails(folder, &flags, 2, &[wanted]);
        let output = super::train(folder, &flags);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("--layers"), "{errors}");
    }
}
