//! Inputs that `gpipe-rs simulate` and `plan` refuse, with the messages.

use std::fs;

use super::{folder_with_profile, gpipe, gpipe_in, profile, refused, stdout};

#[test]
fn wrong_use_is_told_in_a_line_that_helps() {
    let simulate = ["simulate", "--devices", "4", "--micro", "8"];
    for (flags, hint) in [
        (&["--schedule", "1fb1"][..], "did you mean `1f1b`?"),
        (&["--schedule", "1b1f"], "did you mean `1f1b`?"),
        (&["--schedul", "1f1b"], "'--schedule'"),
        (&[], "--schedule <NAME>"),
        (&["--schedule", "1f1b", "--forward-us", "-1"], "not a time"),
        (&["--schedule", "1f1b", "--forward-us", "NaN"], "not a time"),
        (&["--schedule", "1f1b", "--link", "fast"], "25GB/s,5us"),
        (&["--schedule", "v-half", "--chunks", "3"], "two chunks"),
        (&["--schedule", "1f1b", "--chunks", "0"], "at least 1"),
        (&["--schedule", "1f1b", "--format", "pdf"], "svg"),
        (&["--schedule", "1f1b", "--balance", "1,2"], "--profile"),
        (
            &["--schedule", "1f1b", "--profile", "nowhere.json"],
            "nowhere.json",
        ),
        (&["--compare", "--format", "svg"], "--compare"),
        (&["--compare", "--schedule", "1f1b"], "--schedule"),
        // Regression test: an SVG was written to a file named as a page.
        (
            &["--schedule", "1f1b", "--format", "svg", "-o", "x.html"],
            "asks for another format",
        ),
        (
            &[
                "--schedule",
                "looped-bfs",
                "--chunks",
                "1000000000000000000",
            ],
            "too many",
        ),
    ] {
        let message = refused(&gpipe(&[&simulate[..], flags].concat()), 2);
        assert!(
            message.starts_with("error: ") && message.contains(hint),
            "{flags:?}: {message}"
        );
    }
    for micro in ["0", "-3", "1.5", "1000000000000000000"] {
        let args = [
            "simulate",
            "--schedule",
            "1f1b",
            "--devices",
            "4",
            "--micro",
            micro,
        ];
        refused(&gpipe(&args), 2);
    }
    let drawn = [
        "simulate",
        "--schedule",
        "1f1b",
        "--devices",
        "64",
        "--micro",
        "9000",
        "--format",
        "svg",
    ];
    assert!(refused(&gpipe(&drawn), 2).contains("too many for a picture"));
}

#[test]
fn a_broken_profile_is_told_by_file_field_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    let good = profile().to_string();
    for (broken, hint) in [
        (
            good.replacen("\"forward_us\":100", "\"forward_us\":-1", 1),
            "layers[0].forward_us: must be",
        ),
        (
            good.replacen("\"version\":1", "\"version\":7", 1),
            "version",
        ),
        (
            good.replacen("\"batch\":8", "\"batch\":1000000000000000000", 1),
            "batch: must be",
        ),
        (
            good.replacen("\"device\"", "\"colour\":1,\"device\"", 1),
            "colour: is not a field",
        ),
        (good[..good.len() / 2].to_owned(), "is cut off"),
        (
            good.replacen("\"forward_us\":100", "\"forward_us\":\"fast\"", 1),
            "layers[0].forward_us",
        ),
    ] {
        fs::write(folder.path().join("broken.json"), broken).unwrap();
        let plan = ["plan", "--devices", "2", "--profile", "broken.json"];
        let simulate = [
            "simulate",
            "--schedule",
            "1f1b",
            "--devices",
            "2",
            "--micro",
            "4",
            "--profile",
            "broken.json",
        ];
        for args in [&plan[..], &simulate] {
            let message = refused(&gpipe_in(folder.path(), args), 2);
            assert!(
                message.contains("broken.json: ") && message.contains(hint),
                "{message}"
            );
        }
    }
}

/// `plan` accepts `except-last` and lists of devices, as `train` does.
#[test]
fn words_of_train_are_understood() {
    let folder = folder_with_profile();
    let simulate = ["simulate", "--schedule", "1f1b", "--micro", "8"];
    for verb in [&["plan"][..], &simulate] {
        let run = |flags: &[&str]| {
            let profile = ["--profile", "profile.json", "--json"];
            gpipe_in(folder.path(), &[verb, &profile, flags].concat())
        };
        let message = refused(&run(&["--devices", "2", "--recompute", "except-last"]), 2);
        assert!(
            message.contains("`except-last` is for `train` without a plan"),
            "{message}"
        );
        let plain = stdout(&run(&["--devices", "2"]));
        for list in ["cpu*2", "cpu,cpu", "cuda:0-1"] {
            assert_eq!(stdout(&run(&["--devices", list])), plain, "{list}");
        }
        let message = refused(&run(&["--devices", "auto"]), 2);
        assert!(
            message.contains("say how many devices there are"),
            "{message}"
        );
    }
}

/// Words of 100,000 letters, from a file or the command line, must not be printed whole.
#[test]
fn a_long_word_in_an_error_is_told_without_its_middle() {
    let name = "p".repeat(100_000);
    let simulate = [
        "simulate",
        "--micro",
        "4",
        "--schedule",
        "1f1b",
        "--devices",
        "2",
        "--profile",
        &name,
    ];
    let output = gpipe(&simulate);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("ppp… (99"), "{errors}");
    assert!(errors.len() < 1_000, "{}", errors.len());
}
