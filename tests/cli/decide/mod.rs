//! `gpipe-rs simulate`, `schedule` and `plan` as users run them, in a build with or without libtorch.

mod book;
mod choices;
mod cluster;
mod fits;
mod limit;
mod nodes;
mod noise;
mod pages;
mod plan;
mod report;
mod risks;
mod runners_up;
mod schedule;
mod shape;
mod shell;
mod simulate;
mod sweep;
mod wrong_use;

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::run::command;

fn gpipe(args: &[&str]) -> Output {
    gpipe_in(Path::new("."), args)
}

fn gpipe_in(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).env("COLUMNS", "80").output().unwrap()
}

fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Joins words with single spaces, ignoring line breaks.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The entry of a title in the text, as one line.
fn said(text: &str, title: &str) -> String {
    let begin = format!("\n{title:<15}");
    let (_, behind) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{title}: {text}"));
    let more = |line: &&str| line.starts_with(&" ".repeat(15));
    let mut lines = behind.lines();
    let first = lines.next().unwrap_or_default();
    let lines: Vec<&str> = std::iter::once(first)
        .chain(lines.take_while(more))
        .collect();
    flat(&lines.join(" "))
}

/// Formats a line of the text as pages do.
fn as_sentence(line: &str) -> String {
    let (first, rest) = line.split_at(1);
    format!("{}{}.", first.to_uppercase(), rest.trim_end_matches('.'))
}

/// Standard error of a run that exits with `code` and prints no data.
fn refused(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn simulate(schedule: &str, p: usize, m: usize, flags: &[&str]) -> Value {
    let (p, m) = (p.to_string(), m.to_string());
    let mut args = vec![
        "simulate",
        "--schedule",
        schedule,
        "--devices",
        &p,
        "--micro",
        &m,
        "--json",
    ];
    args.extend(flags);
    serde_json::from_str(&stdout(&gpipe(&args))).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Twelve layers whose backward takes twice as long as their forward; the last one is slower.
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
fn help_has_an_example() {
    for verb in [
        &["simulate"][..],
        &["plan"],
        &["schedule"],
        &["schedule", "show"],
        &["schedule", "check"],
        &["schedule", "export"],
        &["schedule", "import"],
    ] {
        let text = stdout(&gpipe(&[verb, &["--help"]].concat()));
        assert!(
            text.contains(&format!("gpipe-rs {}", verb.join(" "))),
            "{text}"
        );
        assert!(text.contains("Example"), "{text}");
    }
}
