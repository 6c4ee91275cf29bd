//! An MLP on a table.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::{as_json, config, fails, printed, trained};

/// Eighty rows of three classes, which two columns tell.
fn table(folder: &Path) {
    let mut text = String::from("kind,height,weight\n");
    for row in 0..80 {
        let (height, weight) = (row % 9, row % 7);
        let kind = ["small", "tall", "heavy"][usize::from(height > 4) + usize::from(weight > 5)];
        writeln!(text, "{kind},{height}.5,{weight}e2").unwrap();
    }
    fs::write(folder.join("table.csv"), text).unwrap();
}

const MLP: &str = "--model mlp --hidden 8 --depth 2 --data table.csv --target kind";

#[test]
fn an_mlp_on_a_table_is_trained_resumed_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let judged = trained(folder, MLP);
    assert_eq!(judged["count"], 8);
    assert!(judged["accuracy"].is_number(), "{judged}");
    let own = config(folder, "whole");
    assert_eq!(own["model"]["inputs"].as_integer(), Some(2));
    assert_eq!(own["model"]["outputs"].as_integer(), Some(3));
    assert_eq!(own["data"]["target"].as_str(), Some("kind"));
    // The configuration alone trains the same.
    printed(
        folder,
        "train --quiet --config whole/config.toml --out again",
    );
    assert_eq!(
        super::losses(folder, "again"),
        super::losses(folder, "whole")
    );
    let lines = printed(folder, "eval --run whole");
    assert!(
        lines.contains("(8 samples, held out)") && lines.contains("accuracy"),
        "{lines}"
    );
}

#[test]
fn another_table_is_judged_by_the_classes_and_scales_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = "train --quiet --steps 2 --batch 8 --out run --held-out 0";
    let told = as_json(folder, &format!("{train} --json {MLP}"));
    assert_eq!(told["held_out_loss"], json!(null));
    fails(
        folder,
        "eval --run run",
        2,
        &["nothing of it was held out", "--data PATH"],
    );
    let text = fs::read_to_string(folder.join("table.csv")).unwrap();
    let all = as_json(folder, "eval --run run --json --data table.csv");
    assert_eq!(all["count"], 80);
    // The same rows backwards, in other columns.
    let rows = text.lines().skip(1).map(|row| {
        let cells: Vec<&str> = row.split(',').collect();
        format!("{},{},{}\n", cells[2], cells[0], cells[1])
    });
    fs::write(
        folder.join("b.csv"),
        format!("weight,kind,height\n{}", rows.collect::<String>()),
    )
    .unwrap();
    let other = as_json(folder, "eval --run run --json --data b.csv");
    assert_eq!(
        (&other["loss"], &other["accuracy"]),
        (&all["loss"], &all["accuracy"])
    );
    // What was trained on may not change behind a run.
    fs::write(folder.join("table.csv"), text.replace("8.5", "8.25")).unwrap();
    fails(folder, "eval --run run", 2, &["table.csv", "other data"]);
    fails(
        folder,
        "train --quiet --resume run --steps 4",
        1,
        &["the data, the seed and the sizes"],
    );
}

#[test]
fn a_profile_has_the_sizes_of_the_table_and_its_plan_trains() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let profile = format!("profile --quick --json --batch 8 --plan plan.json {MLP}");
    let told = as_json(folder, &profile);
    assert_eq!(told["input"]["data"], "table.csv");
    let train =
        format!("train --quiet --json --steps 2 --batch 8 --plan plan.json --out run {MLP}");
    as_json(folder, &train);
    assert_eq!(
        config(folder, "run")["model"]["outputs"].as_integer(),
        Some(3)
    );
}

#[test]
fn what_does_not_fit_is_told_before_anything_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = |flags: &str| format!("train --quiet --out run {flags}");
    let refused = |flags: &str, wanted: &[&str]| fails(folder, &train(flags), 2, wanted);
    refused(
        &MLP.replace("kind", "colour"),
        &["--data: table.csv, line 1", "no column `colour`"],
    );
    refused(
        &format!("{MLP} --outputs 2"),
        &["3 classes", "`mlp` tells 2", "use --outputs 3"],
    );
    refused(
        &format!("{MLP} --inputs 5"),
        &["shape [2]", "[5] is needed"],
    );
    refused(
        &format!("{MLP} --batch 80 --micro 2"),
        &["--batch 80", "the 72 samples to train on", "smaller"],
    );
    refused(
        &format!("{MLP} --held-out 3"),
        &["from 0 to below 1", "held_out_batches"],
    );
    refused(
        &format!("{MLP} --normalise much"),
        &["standard", "imagenet"],
    );
    refused(
        "--model resnet50 --data table.csv --target kind",
        &["shape [2]", "`resnet50` takes"],
    );
    refused(
        "--model mlp --data none.csv",
        &["--data", "none.csv", "No such file"],
    );
    fs::write(folder.join("table.csv"), "a,b\n1,2\n,3\n").unwrap();
    refused(
        "--model mlp --data table.csv",
        &["table.csv, line 3", "column `a` has no value"],
    );
    assert!(!folder.join("run").exists());
}
