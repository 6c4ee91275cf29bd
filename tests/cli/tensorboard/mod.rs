//! Other programs read a run's metrics: TensorBoard its event files, if the PyPI package `tensorboard` is
//! installed, and one line of Python its JSON lines.
//!
//! `make tensorboard-check` installs the package into a separate environment and runs these tests with it.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpipe::train::metrics::{RunMetrics, StepMetrics};

use crate::run::printed;

/// The Python of `make tensorboard-check`, or the installed one, if it has this module. Only that command
/// fails without it.
fn python(module: &str) -> Option<String> {
    let has = |python: &str| {
        let imported = Command::new(python)
            .args(["-c", &format!("import {module}")])
            .output();
        imported.is_ok_and(|output| output.status.success())
    };
    if let Ok(python) = std::env::var("TENSORBOARD_PYTHON") {
        assert!(has(&python), "{python} has no {module}");
        return Some(python);
    }
    let found = has("python3").then(|| "python3".to_owned());
    if found.is_none() {
        println!("NOT CHECKED: python3 has no {module} here; try `make tensorboard-check`");
    }
    found
}

/// Compares a run's event files, as read by TensorBoard, with its JSON lines.
fn compare(python: &str, run: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/tensorboard/check.py");
    let output = Command::new(python).arg(script).arg(run).output().unwrap();
    let said = [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    assert!(output.status.success(), "{said}");
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

fn step(step: u64, loss: f64) -> StepMetrics {
    StepMetrics {
        step,
        loss,
        lr: 0.1 / step as f64,
        grad_norm: step.is_multiple_of(2).then_some(1.5),
        tokens_per_s: Some(1e6 + step as f64),
        peak_bytes: vec![1 << 33, step],
        skipped: step == 4,
        ..StepMetrics::default()
    }
}

fn event_files(run: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(run).unwrap().map(|file| file.unwrap().path());
    let named = |path: &PathBuf| path.to_str().unwrap().contains("/events.out.tfevents.");
    files.filter(named).collect()
}

fn trained(folder: &Path) -> PathBuf {
    fs::write(folder.join("text.txt"), "the whale, the whale! ".repeat(60)).unwrap();
    let flags = "train --data text.txt --quiet --out run --steps 5 --layers 2 --d-model 16 \
                 --heads 2 --seq 16 --batch 4 --threads-per-stage 1 --micro 2";
    printed(folder, flags);
    folder.join("run")
}

#[test]
fn tensorboard_reads_what_train_writes() {
    let Some(python) = python("tensorboard") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    compare(&python, &trained(folder.path()));
}

/// Stopped within a record, resumed from an earlier step, and resumed once more.
#[test]
fn tensorboard_reads_each_step_of_a_resumed_run_once() {
    let Some(python) = python("tensorboard") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    let write = |mut metrics: RunMetrics, steps: std::ops::Range<u64>, loss: f64| {
        steps.for_each(|number| metrics.step(&step(number, loss + number as f64)).unwrap());
    };
    write(RunMetrics::create(run).unwrap(), 1..10, 0.25);
    for path in event_files(run) {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(&[40, 0, 0, 0, 0, 0]).unwrap();
    }
    write(RunMetrics::resume(run, 6).unwrap(), 7..12, f64::NAN);
    write(RunMetrics::resume(run, 9).unwrap(), 10..13, 0.75);
    assert_eq!(event_files(run).len(), 3);
    compare(&python, run);
}

/// The line in the book.
#[test]
fn one_line_of_python_reads_the_json_lines() {
    let Some(python) = python("json") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut metrics = RunMetrics::create(folder.path()).unwrap();
    for number in 1..4 {
        metrics.step(&step(number, 2.0 / number as f64)).unwrap();
    }
    metrics.step(&step(4, f64::NAN)).unwrap();
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src/files.md");
    let book = fs::read_to_string(book).unwrap();
    let lines: Vec<_> = book
        .lines()
        .filter(|line| line.contains("metrics.jsonl\")"))
        .collect();
    let [line] = lines[..] else {
        panic!("the book has {lines:?}");
    };
    let line = line.replace("runs/1/", "");
    let program = format!("{line}\nprint([(step['step'], step['loss']) for step in steps])");
    let mut run = Command::new(python);
    let output = run
        .args(["-c", &program])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    assert_eq!(
        said.trim(),
        "[(1, 2.0), (2, 1.0), (3, 0.6666666666666666), (4, None)]"
    );
}
