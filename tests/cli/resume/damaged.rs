//! Damaged checkpoints.

use std::fs;
use std::path::Path;

use super::{assert_same, fails, gpt, place, trained};

const NEWEST: &str = "run/checkpoints/step-00000004";

/// Trains a run of four steps, and saves the last two.
fn begun(folder: &Path) {
    trained(
        folder,
        &gpt(&["--devices", "cpu,cpu", "--steps", "6", "--out", "whole"]),
    );
    let flags = [
        "--steps",
        "4",
        "--set",
        "lr.steps=6",
        "--checkpoint-every",
        "1",
    ];
    trained(
        folder,
        &gpt(&[&["--devices", "cpu,cpu", "--out", "run"], &flags[..]].concat()),
    );
}

/// A power cut may keep a checkpoint and lose metrics. Regression test: this was not reported.
#[test]
fn lost_metrics_are_told_and_the_run_goes_on() {
    let folder = place();
    begun(folder.path());
    let file = folder.path().join("run/metrics.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let first = text.lines().next().unwrap();
    fs::write(&file, format!("{first}\n")).unwrap();
    let told = trained(folder.path(), &["--resume", "run", "--steps", "5"]);
    assert!(
        told.contains("metrics.jsonl has no lines of steps 2 to 4"),
        "{told}"
    );
    let told = trained(folder.path(), &["--resume", "run", "--steps", "6"]);
    assert!(told.contains("steps 2 to 4;"), "{told}");
}

#[test]
fn a_damaged_newest_one_is_named_and_an_older_one_used_where_that_is_agreed_to() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage, &[&str]); 4] = [
        (
            "stage-1.safetensors",
            |path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            &["cut off"],
        ),
        (
            "stage-0.safetensors",
            |path| {
                let mut bytes = fs::read(path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(path, bytes).unwrap();
            },
            &["checksum is wrong"],
        ),
        (
            "manifest.json",
            |path| fs::remove_file(path).unwrap(),
            &["is missing"],
        ),
        (
            "manifest.json",
            |path| fs::write(path, "{}").unwrap(),
            &["not a file of this checkpoint"],
        ),
    ];
    for (file, damage, wanted) in cases {
        let folder = place();
        let folder = folder.path();
        begun(folder);
        damage(&folder.join(NEWEST).join(file));
        let go_on = ["--resume", "run", "--steps", "6"];
        let named = format!("{NEWEST}/{file}");
        let fallback = "--resume-fallback goes on from run/checkpoints/step-00000003";
        fails(folder, &go_on, 1, &[wanted, &[&named, fallback]].concat());
        let told = trained(folder, &[&go_on[..], &["--resume-fallback"]].concat());
        assert!(told.contains(&format!("warning: {named}")), "{told}");
        assert!(told.contains("goes on after step 3"), "{told}");
        assert_same(folder, "run", "whole");
    }
}

#[test]
fn where_none_is_intact_that_is_said() {
    let folder = place();
    let folder = folder.path();
    begun(folder);
    for step in 2..=4 {
        let path = folder.join(format!("run/checkpoints/step-{step:08}/manifest.json"));
        fs::write(path, "no manifest").unwrap();
    }
    let said = [
        "step-00000004/manifest.json",
        "no older checkpoint is intact",
    ];
    fails(folder, &["--resume", "run"], 1, &said);
    fails(
        folder,
        &["--resume", "run", "--resume-fallback"],
        1,
        &["step-00000004"],
    );
}

#[test]
fn a_lost_configuration_is_that_of_the_checkpoint() {
    let folder = place();
    let folder = folder.path();
    begun(folder);
    fs::remove_file(folder.join("run/config.toml")).unwrap();
    trained(folder, &["--resume", "run", "--steps", "6"]);
    assert_same(folder, "run", "whole");
    assert!(folder.join("run/config.toml").is_file());
}
