//! A raw table: dates, words, and cells without a value.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{as_json, config, fails, printed, trained};

/// Ninety sales: every ninth has no size and every seventh no city.
fn table(folder: &Path) {
    let mut text = String::from("sold,size,city,price\n");
    for row in 0..90 {
        let size = if row % 9 == 4 {
            String::new()
        } else {
            (40 + row % 50).to_string()
        };
        let city = if row % 7 == 3 {
            ""
        } else {
            ["Rome", "Oslo"][row % 2]
        };
        let price = 1000 * (40 + row % 50) + 9000 * (row % 2);
        writeln!(
            text,
            "2024-{:02}-{:02},{size},{city},{price}",
            1 + row % 12,
            1 + row % 28
        )
        .unwrap();
    }
    fs::write(folder.join("sales.csv"), text).unwrap();
}

const SALES: &str = "--model mlp --hidden 8 --depth 2 --data sales.csv --loss mse";

#[test]
fn gaps_of_a_table_are_filled_in_training_and_in_all_that_comes_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let wanted = [
        "sales.csv, line 5: columns have no value: `size` (10 rows), `city` (13 rows)",
        "--missing fill",
        "--missing drop",
    ];
    fails(folder, &format!("train --out run {SALES}"), 2, &wanted);
    let judged = trained(folder, &format!("{SALES} --missing fill"));
    assert_eq!(judged["count"], 9);
    let own = config(folder, "whole");
    // Five for the date, the size and its gap, two cities and their gap.
    assert_eq!(own["model"]["inputs"].as_integer(), Some(10));
    assert_eq!(own["data"]["missing"].as_str(), Some("fill"));
    // Rows to predict have gaps, too.
    fs::write(
        folder.join("new.csv"),
        "size,sold,city\n,2024-05-05,\n90,,Oslo\n",
    )
    .unwrap();
    let told = as_json(folder, "predict --run whole new.csv --json");
    assert_eq!(told["samples"].as_array().unwrap().len(), 2);
    let all = as_json(folder, "eval --run whole --json --data sales.csv");
    assert_eq!(all["count"], 90);
    // It belongs to the run.
    let other = "train --quiet --resume whole --steps 9 --missing drop";
    fails(folder, other, 2, &["missing"]);
    let profile = format!("profile --quick --json --batch 8 {SALES} --missing fill");
    assert_eq!(as_json(folder, &profile)["input"]["data"], "sales.csv");
}

#[test]
fn rows_with_gaps_are_left_out_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let output = crate::run::gpipe(
        folder,
        &format!("train --steps 1 --batch 8 --out run {SALES} --missing drop"),
    );
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("22 rows with a cell without a value left out"),
        "{told}"
    );
    assert!(told.contains("`sold` is 5 inputs"), "{told}");
    let all = as_json(folder, "eval --run run --json --data sales.csv");
    assert_eq!(all["count"], 68);
    fs::write(folder.join("new.csv"), "size,sold,city\n,2024-05-05,Oslo\n").unwrap();
    let wanted = ["new.csv, line 2: column `size` has no value", "fill it in"];
    fails(folder, "predict --run run new.csv", 2, &wanted);
    fs::write(
        folder.join("new.csv"),
        "size,sold,city\n50,2024-05-05,Oslo\n",
    )
    .unwrap();
    printed(folder, "predict --run run new.csv");
}
