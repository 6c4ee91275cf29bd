//! Risks in `gpipe-rs simulate`: jitter, failures, and doubts about a profile.

use std::fs;

use serde_json::Value;

use super::{
    folder_with_profile, gpipe, gpipe_in, number, profile, refused, said, simulate, stdout,
};

fn sweep(flags: &[&str]) -> std::process::Output {
    gpipe(&[&["simulate"], flags].concat())
}

#[test]
fn jitter_costs_time_and_the_same_seed_costs_the_same() {
    let jitter = |flags: &[&str]| simulate("1f1b", 4, 16, flags);
    let one = jitter(&["--jitter", "5%", "--jitter-runs", "50"]);
    assert_eq!(one, jitter(&["--jitter", "0.05", "--jitter-runs", "50"]));
    assert_ne!(
        one["jitter"],
        jitter(&[
            "--jitter",
            "5%",
            "--jitter-runs",
            "50",
            "--jitter-seed",
            "1"
        ])["jitter"]
    );
    let of = |key: &str| number(&one["jitter"][key]);
    assert!(of("mean_us") > number(&one["makespan_us"]));
    assert!(of("p05_us") < of("p50_us") && of("p50_us") < of("p95_us"));
    let flags = [
        "--compare",
        "--devices",
        "4",
        "--micro",
        "8",
        "--jitter",
        "5%",
    ];
    let text = stdout(&sweep(&flags));
    assert!(text.contains("the fastest with jitter first"), "{text}");
    assert!(text.contains("* the fastest with jitter\n"), "{text}");
    for wrong in ["120%", "-1", "x"] {
        let flag = format!("--jitter={wrong}");
        let flags = [
            "--schedule",
            "1f1b",
            "--devices",
            "2",
            "--micro",
            "2",
            &flag,
        ];
        assert!(refused(&sweep(&flags), 2).contains("a share from 0 to 100 %"));
    }
}

#[test]
fn failures_say_how_often_to_write_a_checkpoint() {
    let flags = [
        "--forward-us",
        "1s",
        "--mtbf",
        "6h",
        "--checkpoint-time",
        "30s",
        "--restart-time",
        "5min",
    ];
    let numbers = simulate("1f1b", 4, 16, &flags);
    let of = |key: &str| number(&numbers["failures"][key]);
    // Young's interval: the square root of 2 · 30 s · 21 600 s.
    assert!((of("young_us") / 1e6 - 1_138.42).abs() < 0.01);
    assert!(of("daly_us") < of("young_us"));
    let time = of("checkpoint_steps") * number(&numbers["makespan_us"]);
    assert!((time - of("daly_us")).abs() <= number(&numbers["makespan_us"]));
    assert!((0.9..0.95).contains(&of("goodput")), "{numbers}");
    let alone = [
        "--schedule",
        "1f1b",
        "--devices",
        "2",
        "--micro",
        "2",
        "--mtbf",
        "6h",
    ];
    assert!(refused(&sweep(&alone), 2).contains("--checkpoint-time"));
    let none = [&alone[..6], &["--mtbf", "0", "--checkpoint-time", "1s"]].concat();
    assert!(refused(&sweep(&none), 2).contains("--mtbf: must be more than no time"));
}

fn swept(flags: &[&str]) -> Vec<Value> {
    let both = ["simulate", "--devices", "4", "--micro", "16", "--json"];
    serde_json::from_str(&stdout(&gpipe(&[&both, flags].concat()))).unwrap()
}

/// Regression test: a sweep refused jitter and failures.
#[test]
fn jitter_is_swept_with_the_numbers_of_each_alone() {
    let flags = ["--sweep", "jitter=0,2,10%", "--sweep", "schedule=1f1b,zbv"];
    let runs = ["--jitter-runs", "20", "--jitter-seed", "3"];
    let all = swept(&[&flags[..], &runs].concat());
    assert_eq!(all.len(), 6);
    for (point, share) in all.iter().zip(["0", "0", "0.02", "0.02", "0.1", "0.1"]) {
        let schedule = point["schedule"].as_str().unwrap();
        let alone = simulate(schedule, 4, 16, &[&["--jitter", share][..], &runs].concat());
        for key in ["mean_us", "p95_us", "bubble_fraction", "seed", "runs"] {
            assert_eq!(point["jitter"][key], alone["jitter"][key], "{key} {point}");
        }
        let (mean, exact) = (
            number(&point["jitter"]["mean_us"]),
            number(&point["makespan_us"]),
        );
        assert_eq!(share == "0", (mean - exact).abs() < 1e-6 * exact, "{point}");
    }
}

#[test]
fn failures_are_swept_as_a_table_and_a_chart() {
    let flags = [
        "--sweep",
        "mtbf=1h,6h",
        "--sweep",
        "schedule=1f1b,zbv",
        "--checkpoint-time",
        "30s",
        "--jitter",
        "5%",
        "--jitter-runs",
        "10",
    ];
    let all = swept(&flags);
    let goodput = |at: usize| number(&all[at]["failures"]["goodput"]);
    assert!(goodput(0) < goodput(2) && goodput(2) < 1.0, "{all:?}");
    assert_eq!(all[0]["failures"]["mtbf_us"], 3.6e9);
    let both = ["simulate", "--devices", "4", "--micro", "16"];
    let text = stdout(&gpipe(&[&both, &flags[..]].concat()));
    // Values that all rows share are printed once, and long column names are wrapped.
    assert!(
        text.starts_with("all with devices 4, micro-batches 16, jitter 5 %\n"),
        "{text}"
    );
    let (heading, _) = text.split_once("\n1f1b").unwrap();
    for word in ["failure", "95 % of", "within", "checkpoint", "goodput"] {
        assert!(heading.contains(word), "{text}");
    }
    // Notes are wrapped at the terminal's width.
    let note = said(&text, "failures");
    assert!(
        note.starts_with("`goodput` is the share of all time"),
        "{text}"
    );
    assert!(note.contains("30 s for a checkpoint"), "{text}");
    let notes = text.lines().skip_while(|line| !line.starts_with("jitter "));
    assert!(notes.clone().count() > 4, "{text}");
    assert!(
        notes
            .map(|line| line.chars().count())
            .all(|wide| wide <= 80),
        "{text}"
    );
    // Schedules under equal conditions are adjacent.
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let schedules: Vec<String> = text.lines().skip(4).take(4).filter_map(first).collect();
    assert_eq!(schedules, ["1f1b", "zbv", "1f1b", "zbv"], "{text}");
    assert!(text.contains(" 1 h ") && text.contains(" 6 h "), "{text}");
    let page = stdout(&gpipe(&[&both, &flags[..], &["--format", "html"]].concat()));
    for own in [
        "Time lost to bubbles, checkpoints and failures",
        ">mean time between failures</text>",
        ">1 h</text>",
        "a failure every 6 h",
        "standard deviation that of the column <code>jitter</code>); <code>step</code> is the mean of 10",
    ] {
        assert!(page.contains(own), "{own}");
    }
    assert_eq!(page.matches("class=\"mark\"").count(), 4);
}

/// Doubts about a profile are repeated by `plan` and `simulate`, briefly: in full they took ten lines before
/// the first number.
#[test]
fn doubts_about_a_profile_are_repeated_once() {
    let folder = folder_with_profile();
    let mut doubted = profile();
    doubted["doubts"] = Value::from(vec![
        "other programs used 2.0 of 2 cores: times are longer than they would be; measure again",
        "layer `a` is noisy (\u{b1}30 %): stop other programs",
    ]);
    fs::write(folder.path().join("profile.json"), doubted.to_string()).unwrap();
    for flags in [
        "--schedule 1f1b --devices 2 --micro 4",
        "--compare --devices 2 --micro 4",
        "--sweep micro=4,8 --sweep schedule=1f1b,zb-h1 --devices 2",
    ] {
        let mut args = vec!["simulate", "--profile", "profile.json"];
        args.extend(flags.split_whitespace());
        let output = gpipe_in(folder.path(), &args);
        stdout(&output);
        let said = String::from_utf8(output.stderr).unwrap();
        let note = "note: of the profile: other programs used 2.0 of 2 cores; layer `a` is noisy \
                    (\u{b1}30 %): times may be off";
        assert_eq!(said.matches(note).count(), 1, "{flags}: {said}");
        assert!(!said.contains("stop other programs"), "{said}");
    }
}
