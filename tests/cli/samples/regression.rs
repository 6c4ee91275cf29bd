//! The built-in MLP on numeric targets.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{as_json, config, fails, printed, trained};
use crate::run::gpipe;

/// Eighty rows; two columns determine the price, and whether it is high.
fn table(folder: &Path) {
    let mut text = String::from("size,age,price,dear\n");
    for row in 0..80 {
        let (size, age) = (row % 9, row % 7);
        let price = f64::from(size) * 0.25 - f64::from(age) * 0.1;
        writeln!(text, "{size},{age},{price},{}", u8::from(price > 0.7)).unwrap();
    }
    fs::write(folder.join("table.csv"), text).unwrap();
}

/// Regression test: for an unusable row the message said to replace the file.
#[test]
fn a_row_that_cannot_be_learnt_is_to_be_mended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = format!("train {MLP} --loss bce --target size --steps 3 --batch 4 --out run");
    fails(
        folder,
        &train,
        1,
        &[
            "line ",
            "; mend the row, or leave it out",
            "such rows in an epoch",
        ],
    );
}

const MLP: &str = "--model mlp --hidden 8 --depth 2 --data table.csv";

#[test]
fn an_mlp_learns_the_numbers_of_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let judged = trained(folder, &format!("{MLP} --loss mse --target price"));
    assert_eq!(judged["count"], 8);
    assert!(judged.get("accuracy").is_none(), "{judged}");
    let own = config(folder, "whole");
    assert_eq!(own["model"]["outputs"].as_integer(), Some(1));
    assert_eq!(own["loss"]["name"].as_str(), Some("mse"));
    printed(
        folder,
        "train --quiet --config whole/config.toml --out again",
    );
    assert_eq!(
        super::losses(folder, "again"),
        super::losses(folder, "whole")
    );
    // The cut does not change the numbers.
    let train = "train --quiet --checkpoint-every 3 --warmup 1 --threads-per-stage 1 --steps 6 --batch 8 \
                 --micro 2 --out cut --devices cpu,cpu,cpu --schedule zb-h1";
    printed(folder, &format!("{train} {MLP} --loss mse --target price"));
    assert_eq!(super::losses(folder, "cut"), super::losses(folder, "whole"));
    let told = printed(folder, "eval --run whole");
    assert!(
        told.contains("loss        ") && !told.contains("accuracy"),
        "{told}"
    );
    let long = "train --quiet --json --batch 8 --steps 150 --lr 0.01";
    let learned = as_json(folder, &format!("{long} {MLP} --loss mse --target price"));
    assert!(
        learned["held_out_loss"].as_f64().unwrap() < 0.05,
        "{learned}"
    );
}

#[test]
fn it_is_profiled_planned_and_judged_by_other_losses() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let flags = format!("--batch 8 {MLP} --target dear --loss bce");
    let profile =
        format!("profile --quick --json --plan plan.json --held-out 0.25 --normalise none {flags}");
    assert_eq!(as_json(folder, &profile)["input"]["data"], "table.csv");
    let train = "train --quiet --steps 2 --checkpoint-every 2 --plan plan.json --out run";
    printed(folder, &format!("{train} {flags}"));
    let judged = as_json(folder, "eval --run run --json");
    assert!(judged["loss"].is_number(), "{judged}");
    // Naming the model's own loss changes nothing.
    let train = "train --quiet --steps 2 --batch 8 --threads-per-stage 1 --target dear";
    printed(folder, &format!("{train} {MLP} --out one"));
    printed(
        folder,
        &format!("{train} {MLP} --loss cross-entropy --out two"),
    );
    assert_eq!(super::losses(folder, "one"), super::losses(folder, "two"));
    let profile = |flags: &str| format!("profile --quick --batch 8 {MLP} {flags}");
    fails(
        folder,
        &profile("--held-out 2"),
        2,
        &["--held-out", "below 1"],
    );
    fails(
        folder,
        &profile("--normalise much"),
        2,
        &["--normalise", "imagenet"],
    );
}

#[test]
fn what_does_not_fit_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = |flags: &str| format!("train --quiet --steps 1 --batch 8 {flags}");
    let refused = |flags: &str, wanted: &[&str]| fails(folder, &train(flags), 2, wanted);
    refused(
        &format!("{MLP} --loss output"),
        &["--loss output: `mlp` may be judged by cross-entropy, mse, bce"],
    );
    refused(
        &format!("{MLP} --loss mse --target price --outputs 2"),
        &["shape [1]", "[2] is needed"],
    );
    refused(
        "--model gpt --loss mse",
        &["--loss: `gpt` has a loss of its own"],
    );
    // The default loss is for classes.
    refused(
        &format!("{MLP} --target price"),
        &["has numbers such as", "--loss mse"],
    );
}

/// Regression test: prices of some hundred thousand were not learnt: nothing scaled them, and no error was in
/// their units.
#[test]
fn targets_far_from_zero_are_learnt_scaled_and_told_in_their_own_units() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut text = String::from("id,size,city,price\n");
    let price = |row: usize| 1_000_000 + 50_000 * (row * 5 % 9);
    for row in 0..90 {
        let (size, price) = (row * 5 % 9, price(row));
        writeln!(text, "{},{size},Rome,{price}", row + 100).unwrap();
    }
    fs::write(folder.join("h.csv"), &text).unwrap();
    let train =
        "train --model mlp --hidden 16 --depth 2 --data h.csv --loss mse --batch 9 --out run";
    let with_id = format!("{train} --steps 1 --drop-columns city");
    let told = gpipe_rs(folder, &with_id);
    let wanted =
        "`id` counts the rows, and is an input as any other: leave it out with --drop-columns id";
    assert!(told.contains(wanted), "{told}");
    let flags = "--steps 200 --lr 0.01 --drop-columns id,city";
    let told = gpipe_rs(folder, &format!("{train}2 {flags}"));
    assert!(told.contains("`price` is learnt as (`price` - 1"), "{told}");
    assert!(!told.contains("counts the rows"), "{told}");
    assert!(told.contains("a root mean square error of "), "{told}");
    assert!(told.contains("in the units of the data"), "{told}");
    let own = config(folder, "run2");
    assert_eq!(own["model"]["inputs"].as_integer(), Some(1));
    assert_eq!(own["data"]["drop_columns"].as_array().unwrap().len(), 2);

    let judged = as_json(folder, "eval --run run2 --json --data h.csv");
    let (rmse, r2) = (
        judged["rmse"].as_f64().unwrap(),
        judged["r2"].as_f64().unwrap(),
    );
    assert!(rmse < 20_000.0 && r2 > 0.98, "{judged}");
    // Covers all rows: the loss is in deviations of the training rows.
    let told = printed(folder, "eval --run run2 --data h.csv");
    assert!(
        told.contains("rmse        ") && told.contains("r2          0.9"),
        "{told}"
    );

    // Regression test: prices were printed as `1.23e5`.
    let told = printed(folder, "predict --run run2 h.csv");
    let told = told.lines().nth(1).unwrap().rsplit(' ').next().unwrap();
    let price_0: f64 = told.parse().unwrap();
    assert!(
        (0.9e6..1.1e6).contains(&price_0) && !told.contains('e'),
        "{told}"
    );
    let predicted = as_json(folder, "predict --run run2 h.csv --json");
    let samples = predicted["samples"].as_array().unwrap();
    let squares: f64 = samples
        .iter()
        .enumerate()
        .map(|(row, own)| (own["values"][0].as_f64().unwrap() - price(row) as f64).powi(2))
        .sum();
    let own = (squares / 90.0).sqrt();
    assert!((own / rmse - 1.0).abs() < 1e-3, "{own} and {rmse}");

    // Scaling can be turned off, and large targets are then reported.
    let told = gpipe_rs(
        folder,
        &format!("{train}3 --steps 1 --drop-columns id,city --normalise none"),
    );
    assert!(
        told.contains("models learn it faster as (`price` - 1"),
        "{told}"
    );
    for (columns, wanted) in [
        (
            "color",
            "there is no column `color`; there are `id`, `size`, `city`, `price`",
        ),
        (
            "price --target price",
            "column `price` is the target and cannot be dropped",
        ),
        (
            "id,size,city",
            "beside the target `price` there is no column",
        ),
    ] {
        fails(
            folder,
            &format!("{train}4 --drop-columns {columns}"),
            2,
            &[wanted],
        );
    }
    // The last remaining column is the target.
    let profile =
        "profile --quick --batch 8 --model mlp --data h.csv --drop-columns city,price --loss mse";
    as_json(folder, &format!("{profile} --json"));
}

/// All output of a command.
#[track_caller]
fn gpipe_rs(folder: &Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let all = [output.stdout, output.stderr].concat();
    let all = String::from_utf8(all).unwrap();
    assert!(output.status.success(), "{args}: {all}");
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}
