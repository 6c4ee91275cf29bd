//! `gpipe-rs simulate`, `schedule` and `plan` as a person uses them, in a build with
//! or without libtorch.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn gpipe(args: &[&str]) -> Output {
    gpipe_in(Path::new("."), args)
}

fn gpipe_in(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpipe-rs"));
    command.args(args).current_dir(folder).env("COLUMNS", "80").output().unwrap()
}

fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What standard error says, of a run that ends with `code` and prints no data.
fn refused(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn simulate(schedule: &str, p: usize, m: usize, flags: &[&str]) -> Value {
    let (p, m) = (p.to_string(), m.to_string());
    let mut args = vec!["simulate", "--schedule", schedule, "--devices", &p, "--micro", &m, "--json"];
    args.extend(flags);
    serde_json::from_str(&stdout(&gpipe(&args))).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Twelve layers, each twice as slow in its backward, the last one slow besides.
fn profile() -> Value {
    let layer = |index: usize| {
        let time = if index == 11 { 300 } else { 100 };
        json!({
            "name": format!("block.{index}"), "forward_us": time, "backward_input_us": time,
            "backward_weight_us": time, "parameter_bytes": 1 << 20,
            "activation_bytes": 4 << 20, "output_bytes": 1 << 20,
        })
    };
    let layers: Vec<Value> = (0..12).map(layer).collect();
    json!({"version": 1, "device": "cpu", "batch": 8, "layers": layers})
}

/// A folder with `profile.json`.
fn folder_with_profile() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("profile.json"), profile().to_string()).unwrap();
    folder
}

#[test]
fn bubbles_are_those_of_the_literature() {
    // Tf, Ti, Tw in microseconds, and the bubble times that they give.
    let times = ["--forward-us", "1000", "--input-us", "1300", "--weight-us", "700"];
    let (f, i, w) = (1000.0, 1300.0, 700.0);
    for (p, m) in [(2, 4), (4, 8), (8, 16)] {
        let gaps = (p - 1) as f64;
        for (schedule, v, bubble) in [
            ("gpipe", 1, gaps * (f + i + w)),
            ("1f1b", 1, gaps * (f + i + w)),
            ("interleaved-1f1b", 2, gaps * (f + i + w) / 2.0),
            ("looped-bfs", 2, gaps * (f + i + w) / 2.0),
            ("zb-h1", 1, gaps * (f + i - w)),
            ("interleaved-zb", 2, gaps * (f + i - w) / 2.0),
        ] {
            let json = simulate(schedule, p, m, &times);
            let makespan = number(&json["makespan_us"]);
            let expected = m as f64 * (f + i + w) + bubble;
            assert!((makespan - expected).abs() < 1e-6, "{schedule} {p} {m}: {json}");
            assert!((number(&json["bubble_fraction"]) - bubble / expected).abs() < 1e-9);
            assert_eq!(json["chunks"], v, "{schedule}");
            assert_eq!(json["idle_us"].as_array().unwrap().len(), p);
            assert_eq!((&json["devices"], &json["micro_batches"]), (&json!(p), &json!(m)));
            assert_eq!(json["schedule"], schedule);
        }
    }
}

#[test]
fn in_flight_counts_a_chunk_as_its_share() {
    let of = |schedule| simulate(schedule, 4, 8, &[])["peak_in_flight"].clone();
    assert_eq!(of("1f1b"), json!([4.0, 3.0, 2.0, 1.0]));
    assert_eq!(of("gpipe"), json!([8.0, 8.0, 8.0, 8.0]));
    // [(v - 1) p + 2 (p - 1 - r) + 1] / v
    assert_eq!(of("interleaved-1f1b"), json!([5.5, 4.5, 3.5, 2.5]));
    assert_eq!(of("zbv"), json!([4.0, 4.0, 4.0, 4.0]));
    let json = simulate("1f1b", 4, 8, &["--activation-bytes", "1MiB"]);
    assert_eq!(json["peak_bytes"], json!([4 << 20, 3 << 20, 2 << 20, 1 << 20]));
}

#[test]
fn a_link_costs_what_its_bandwidth_and_latency_say() {
    let flags = ["--link", "1GB/s,50us", "--output-bytes", "100kB"];
    let one = number(&simulate("forward-only", 2, 1, &flags)["makespan_us"]);
    assert!((one - 2150.0).abs() < 1e-9, "{one}");
}

#[test]
fn auto_is_never_behind_a_built_in_schedule() {
    let folder = folder_with_profile();
    for flags in [&["--link", "10GB/s,20us", "--profile", "profile.json"][..], &[]] {
        let mut args = vec!["simulate", "--compare", "--devices", "3", "--micro", "6", "--json"];
        args.extend(flags);
        let all: Vec<Value> =
            serde_json::from_str(&stdout(&gpipe_in(folder.path(), &args))).unwrap();
        assert_eq!(all.len(), 13);
        let auto = all.iter().find(|case| case["schedule"] == "auto").unwrap();
        for case in all.iter().filter(|case| case["schedule"] != "forward-only") {
            let Some(makespan) = case["makespan_us"].as_f64() else {
                assert!(case["refused"].is_string(), "{case}");
                continue;
            };
            assert!(number(&auto["makespan_us"]) <= makespan + 1e-6, "{case}");
        }
    }
}

#[test]
fn the_table_of_all_schedules_names_each() {
    let text = stdout(&gpipe(&["simulate", "--compare", "--devices", "4", "--micro", "8"]));
    for name in ["gpipe", "1f1b", "zbv", "dualpipe-v", "forward-only", "auto"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
}

#[test]
fn text_has_a_row_a_device_within_the_width() {
    let text = stdout(&gpipe(&["simulate", "--schedule", "1f1b", "--devices", "4", "--micro", "8"]));
    assert_eq!(text.lines().filter(|line| line.starts_with("dev ")).count(), 4);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("bubble 27.3 %"), "{text}");
}

#[test]
fn every_format_is_written_to_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (format, start) in [
        ("text", "zb-h1: "), ("svg", "<svg "), ("html", "<!DOCTYPE html>"), ("trace", "{"), ("json", "{"),
    ] {
        let args = [
            "simulate", "--schedule", "zb-h1", "--devices", "2", "--micro", "4", "--format", format,
        ];
        let to_stdout = stdout(&gpipe(&[&args[..], &["-o", "-"]].concat()));
        let to_file = gpipe_in(folder.path(), &[&args[..], &["-o", "out"]].concat());
        assert_eq!(stdout(&to_file), "", "{format}");
        let written = fs::read_to_string(folder.path().join("out")).unwrap();
        assert!(written.starts_with(start), "{format}");
        assert_eq!(written, to_stdout, "{format}");
        if format == "trace" || format == "json" {
            assert!(serde_json::from_str::<Value>(&written).is_ok(), "{format}");
        }
    }
}

#[test]
fn wrong_use_is_told_in_a_line_that_helps() {
    let simulate = ["simulate", "--devices", "4", "--micro", "8"];
    for (flags, hint) in [
        (&["--schedule", "1fb1"][..], "did you mean `1f1b`?"),
        (&["--schedul", "1f1b"], "'--schedule'"),
        (&[], "--schedule <NAME>"),
        (&["--schedule", "1f1b", "--forward-us", "-1"], "not a time"),
        (&["--schedule", "1f1b", "--forward-us", "NaN"], "not a time"),
        (&["--schedule", "1f1b", "--link", "fast"], "25GB/s,5us"),
        (&["--schedule", "v-half", "--chunks", "3"], "two chunks"),
        (&["--schedule", "1f1b", "--chunks", "0"], "at least 1"),
        (&["--schedule", "1f1b", "--format", "pdf"], "svg"),
        (&["--schedule", "1f1b", "--balance", "1,2"], "--profile"),
        (&["--schedule", "1f1b", "--profile", "nowhere.json"], "nowhere.json"),
        (&["--compare", "--format", "svg"], "--compare"),
        (&["--schedule", "looped-bfs", "--chunks", "1000000000000000000"], "too many"),
    ] {
        let message = refused(&gpipe(&[&simulate[..], flags].concat()), 2);
        assert!(message.starts_with("error: ") && message.contains(hint), "{flags:?}: {message}");
    }
    for micro in ["0", "-3", "1.5", "1000000000000000000"] {
        let args = ["simulate", "--schedule", "1f1b", "--devices", "4", "--micro", micro];
        refused(&gpipe(&args), 2);
    }
    let drawn = ["simulate", "--schedule", "1f1b", "--devices", "64", "--micro", "9000", "--format", "svg"];
    assert!(refused(&gpipe(&drawn), 2).contains("too many for a picture"));
}

#[test]
fn a_broken_profile_is_told_by_file_field_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    let good = profile().to_string();
    for (broken, hint) in [
        (good.replacen("\"forward_us\":100", "\"forward_us\":-1", 1), "layers[0].forward_us: must be"),
        (good.replacen("\"version\":1", "\"version\":7", 1), "version"),
        (good.replacen("\"batch\":8", "\"batch\":1000000000000000000", 1), "batch: must be"),
        (good.replacen("\"device\"", "\"colour\":1,\"device\"", 1), "colour: is not a field"),
        (good[..good.len() / 2].to_owned(), "EOF"),
        (good.replacen("\"forward_us\":100", "\"forward_us\":\"fast\"", 1), "layers[0].forward_us"),
    ] {
        fs::write(folder.path().join("broken.json"), broken).unwrap();
        let plan = ["plan", "--devices", "2", "--profile", "broken.json"];
        let simulate =
            ["simulate", "--schedule", "1f1b", "--devices", "2", "--micro", "4", "--profile", "broken.json"];
        for args in [&plan[..], &simulate] {
            let message = refused(&gpipe_in(folder.path(), args), 2);
            assert!(message.contains("broken.json: ") && message.contains(hint), "{message}");
        }
    }
}

#[test]
fn a_profile_is_simulated_by_its_balance() {
    let folder = folder_with_profile();
    let run = |balance: &str| {
        let args = [
            "simulate", "--schedule", "1f1b", "--devices", "2", "--micro", "4", "--json",
            "--profile", "profile.json", "--balance", balance,
        ];
        gpipe_in(folder.path(), &args)
    };
    let makespan = |balance| {
        let json: Value = serde_json::from_str(&stdout(&run(balance))).unwrap();
        number(&json["makespan_us"])
    };
    // Fourteen hundred microseconds of forward in all: 7 and 7.
    let (best, even, manual) = (makespan("profile"), makespan("uniform"), makespan("7,5"));
    assert!((best - manual).abs() < 1e-6, "{best} {manual}");
    assert!((best - (4.0 + 1.0) * 3.0 * 700.0).abs() < 1e-6, "{best}");
    assert!(best < even && even <= makespan("6,6") + 1e-6);
    assert!(refused(&run("7,4"), 2).contains("leaves out layer 11"));
    assert!(refused(&run("profil"), 2).contains("must be profile, parameters"));
}

#[test]
fn a_plan_is_chosen_written_and_read_back() {
    let folder = folder_with_profile();
    let args = [
        "plan", "--profile", "profile.json", "--devices", "2", "--memory", "2GiB", "--micro", "8",
        "--schedule", "1f1b", "--chunks", "1", "--json", "-o", "plan.json",
    ];
    let text = stdout(&gpipe_in(folder.path(), &args));
    assert_eq!(text, fs::read_to_string(folder.path().join("plan.json")).unwrap());
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["balance"], json!([7, 5]));
    assert_eq!((&plan["schedule"], &plan["micro_batches"]), (&json!("1f1b"), &json!(8)));
    assert!((number(&plan["bottleneck_us"]) - 2100.0).abs() < 1e-6);
    assert!((number(&plan["step_us"]) - 9.0 * 2100.0).abs() < 1e-6);
    for key in ["chunks", "recompute", "bubble_fraction", "peak_bytes", "alternatives"] {
        assert!(!plan[key].is_null(), "{key}");
    }
    let read = gpipe::partitioner::Plan::read(folder.path().join("plan.json")).unwrap();
    assert_eq!(read.partition.balance(), [7, 5]);
}

#[test]
fn a_free_plan_is_no_slower_than_a_bound_one() {
    let folder = folder_with_profile();
    let step = |flags: &[&str]| {
        let args = [&["plan", "--profile", "profile.json", "--devices", "3", "--batch", "96", "--json"], flags];
        let text = stdout(&gpipe_in(folder.path(), &args.concat()));
        number(&serde_json::from_str::<Value>(&text).unwrap()["step_us"])
    };
    let free = step(&[]);
    for flags in [
        &["--schedule", "1f1b"][..], &["--schedule", "zbv"], &["--micro", "6"], &["--recompute", "always"],
        &["--speed", "1,1,0.5"], &["--link", "1GB/s,100us"],
    ] {
        assert!(free <= step(flags) + 1e-6, "{flags:?}");
    }
}

#[test]
fn a_plan_that_cannot_be_says_why() {
    let folder = folder_with_profile();
    let plan = |flags: &[&str]| {
        gpipe_in(folder.path(), &[&["plan", "--profile", "profile.json"], flags].concat())
    };
    let message = refused(&plan(&["--devices", "2", "--memory", "1MiB"]), 1);
    assert!(message.contains("nothing fits the memory") && message.contains("bytes"), "{message}");
    for (flags, hint) in [
        (&["--devices", "20"][..], "12 layers"),
        (&["--devices", "3", "--speed", "1,2"], "2 values of speed"),
        (&["--devices", "3", "--speed", "0"], "must be from 0.001"),
        (&["--devices", "3", "--memory", "-1GiB"], "amount of memory"),
        (&["--devices", "3", "--recompute", "sometimes"], "never, always, auto"),
        (&["--devices", "3", "--micro", "many"], "whole number"),
        (&["--devices", "1000000000000000000"], "devices"),
    ] {
        let message = refused(&plan(flags), 2);
        assert!(message.contains(hint), "{flags:?}: {message}");
    }
}

#[test]
fn schedules_travel_as_csv() {
    let folder = tempfile::tempdir().unwrap();
    for schedule in ["1f1b", "interleaved-1f1b", "zbv", "dualpipe-v"] {
        let source = ["--schedule", schedule, "--devices", "2", "--micro", "6"];
        let export = |flags: &[&str]| {
            stdout(&gpipe_in(folder.path(), &[&["schedule", "export"], &source[..], flags].concat()))
        };
        let plain = export(&[]);
        assert_eq!(plain.lines().count(), 2);
        assert_eq!(export(&["--communication", "-o", "all.csv"]), "");
        assert!(fs::read_to_string(folder.path().join("all.csv")).unwrap().contains("SEND_F0"));
        let imported = stdout(&gpipe_in(folder.path(), &["schedule", "import", "all.csv"]));
        assert_eq!(imported, plain, "{schedule}");
        let check = ["schedule", "check", "all.csv", "--json"];
        let facts: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &check))).unwrap();
        assert_eq!(facts["legal"], true);
        assert_eq!(facts["micro_batches"], 6);
        let lists = ["schedule", "import", "all.csv", "--json"];
        let lists: Value = serde_json::from_str(&stdout(&gpipe_in(folder.path(), &lists))).unwrap();
        assert_eq!(lists["actions"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn an_illegal_schedule_fails_the_check_with_the_action() {
    let folder = tempfile::tempdir().unwrap();
    let check = |csv: &str| {
        fs::write(folder.path().join("s.csv"), csv).unwrap();
        gpipe_in(folder.path(), &["schedule", "check", "s.csv"])
    };
    assert!(refused(&check("0F0,0F0,0B0\n"), 1).contains("0F0 for the second time"));
    assert!(refused(&check("0F0,0B0\n1F0\n"), 1).contains("1B0 is missing"));
    assert!(refused(&check("0B0,0F0\n"), 1).contains("0B0"));
    assert!(refused(&check("0F0,hello\n"), 2).contains("s.csv: row 1, cell 2: `hello`"));
    assert!(refused(&check(""), 2).contains("no action"));
    assert!(refused(&check("99999999999999999999F0\n"), 2).contains("too large"));
}

#[test]
fn a_small_schedule_is_drawn_in_columns() {
    let args = ["schedule", "show", "--schedule", "1f1b", "--devices", "2", "--micro", "2"];
    insta::assert_snapshot!(stdout(&gpipe(&args)), @r"
    F0 F1  .  . B0 B0  . B1 B1
     . F0 B0 B0 F1 B1 B1  .  .
    ");
}

#[test]
fn help_has_an_example() {
    for verb in [
        &["simulate"][..], &["plan"], &["schedule"], &["schedule", "show"], &["schedule", "check"],
        &["schedule", "export"], &["schedule", "import"],
    ] {
        let text = stdout(&gpipe(&[verb, &["--help"]].concat()));
        assert!(text.contains(&format!("gpipe-rs {}", verb.join(" "))), "{text}");
        assert!(text.contains("Example"), "{text}");
    }
}
