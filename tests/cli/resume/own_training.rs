//! A custom program that uses the library's trainer.

use std::fs;
use std::process::Command;

use super::stopped::{ended, running_as, signal};
use super::{assert_same, losses};
use crate::models::own::example;

#[test]
fn it_is_stopped_and_resumes_to_the_same_bits() {
    let program = example("own_training");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let command = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).current_dir(folder);
        command
    };
    let run = |args: &[&str]| {
        let output = command(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {errors}");
        (String::from_utf8(output.stdout).unwrap(), errors)
    };
    let child = running_as(&mut command(&["run", "1000000"]), folder);
    signal("-INT", &child);
    let (output, errors) = ended(child);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let done = losses(folder, "run").len();
    let last = (done + 20).to_string();
    let (told, lines) = run(&["run", &last, "--resume"]);
    let from = format!("goes on after step {done} from run/checkpoints/");
    assert!(lines.contains(&from), "{lines}");
    for title in ["loss ", "held-out loss ", "bubble ", "plan ", "run folder "] {
        let found = told.lines().any(|line| line.starts_with(title));
        assert!(found, "{title}: {told}");
    }
    run(&["whole", &last]);
    assert_same(folder, "run", "whole");

    let files = fs::read_dir(folder.join("run")).unwrap();
    let files: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let is_there = |name: &str| files.iter().any(|file| file.starts_with(name));
    assert!(
        is_there("events.out.tfevents.") && is_there("trace.json"),
        "{files:?}"
    );
    let page = fs::read_to_string(folder.join("run-report.html")).unwrap();
    assert!(page.contains(&format!("Step {last}")), "{page}");
    // A folder with a run is not overwritten.
    let again = command(&["run", &last]).output().unwrap();
    let errors = String::from_utf8_lossy(&again.stderr);
    assert!(
        errors.contains("run: the folder already holds a run"),
        "{errors}"
    );
}

#[test]
fn it_fits_in_sixty_lines() {
    let source = include_str!("../../../examples/own_training.rs");
    assert!(source.lines().count() < 60);
}
