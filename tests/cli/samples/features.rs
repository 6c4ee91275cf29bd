//! Data that needs an optional feature, and the message of builds without it.

use std::fs;
use std::path::Path;

use super::{FLAGS, fails, losses, printed};
#[cfg(any(feature = "parquet", feature = "object-store"))]
use super::{as_json, trained};

const MLP: &str = "--model mlp --hidden 8 --depth 2 --target kind";

fn rows() -> impl Iterator<Item = (i64, f32, &'static str)> {
    (0..80).map(|n| (n % 9, n as f32 / 16.0, ["a", "b", "c"][n as usize % 3]))
}

fn table(folder: &Path) {
    let lines: Vec<String> = rows()
        .enumerate()
        .map(|(n, (a, b, kind))| {
            let (day, hour) = (8 + n % 20, n % 24);
            format!("{a},{b},2022-01-{day:02},2022-01-{day:02} {hour:02}:00,{kind}\n")
        })
        .collect();
    fs::write(
        folder.join("table.csv"),
        format!("a,b,day,at,kind\n{}", lines.concat()),
    )
    .unwrap();
}

#[cfg(feature = "parquet")]
#[test]
fn data_of_features_a_parquet_table_is_trained_on_as_the_same_table_of_text() {
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, Date32Array, Float32Array, Int64Array, RecordBatch, StringArray,
        TimestampMillisecondArray,
    };

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // From 2022-01-08 on, like the dates in the text.
    let day = |n: i64| 19_000 + n % 20;
    let hour = |n: i64| 3_600_000 * (24 * day(n) + n % 24);
    let columns: [(&str, ArrayRef); 5] = [
        (
            "a",
            Arc::new(Int64Array::from_iter_values(rows().map(|own| own.0))),
        ),
        (
            "b",
            Arc::new(Float32Array::from_iter_values(rows().map(|own| own.1))),
        ),
        (
            "day",
            Arc::new(Date32Array::from_iter_values(
                (0..80).map(|n| day(n) as i32),
            )),
        ),
        (
            "at",
            Arc::new(TimestampMillisecondArray::from_iter_values(
                (0..80).map(hour),
            )),
        ),
        (
            "kind",
            Arc::new(StringArray::from_iter_values(rows().map(|own| own.2))),
        ),
    ];
    let all = RecordBatch::try_from_iter(columns).unwrap();
    let file = fs::File::create(folder.join("table.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, all.schema(), None).unwrap();
    writer.write(&all).unwrap();
    writer.close().unwrap();
    let judged = trained(folder, &format!("{MLP} --data table.parquet"));
    assert_eq!(judged["count"], 8);
    table(folder);
    let train = "train --quiet --steps 6 --warmup 1 --threads-per-stage 1 --out text";
    printed(folder, &format!("{train} {FLAGS} {MLP} --data table.csv"));
    assert_eq!(losses(folder, "text"), losses(folder, "whole"));
    let profiled = format!("profile {MLP} --data table.parquet --batch 8 --micro 2 --json");
    assert!(as_json(folder, &profiled).is_object());
}

#[cfg(not(feature = "parquet"))]
#[test]
fn data_of_features_a_parquet_table_needs_a_program_that_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("table.parquet"), "PAR1").unwrap();
    let train = format!("train {FLAGS} {MLP} --data table.parquet");
    let wanted = ["table.parquet", "--features parquet", "CSV"];
    fails(folder.path(), &train, 2, &wanted);
}

#[cfg(feature = "object-store")]
#[test]
fn data_of_features_a_url_is_trained_on_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let url = format!("file://{}", folder.join("table.csv").display());
    let judged = trained(folder, &format!("{MLP} --data {url}"));
    assert_eq!(judged["count"], 8);
    let config = super::config(folder, "whole");
    assert_eq!(config["data"]["path"].as_str(), Some(&url[..]));
    let train = "train --quiet --steps 6 --warmup 1 --threads-per-stage 1 --out here";
    printed(folder, &format!("{train} {FLAGS} {MLP} --data table.csv"));
    assert_eq!(losses(folder, "here"), losses(folder, "whole"));
    let judged = as_json(folder, &format!("eval --run whole --json --data {url}"));
    assert_eq!(judged["count"], 80);
    let none = format!("file://{}", folder.join("none").display());
    let wrong = format!("train {FLAGS} {MLP} --data {none}");
    fails(
        folder,
        &wrong,
        2,
        &["--data", "none", "no object of that name"],
    );
}

#[cfg(not(feature = "object-store"))]
#[test]
fn data_of_features_a_url_needs_a_program_that_fetches() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path());
    printed(
        folder.path(),
        &format!("train --quiet --steps 1 --out run {FLAGS} {MLP} --data table.csv"),
    );
    let wanted = ["--data", "--features object-store"];
    let train = format!("train {FLAGS} {MLP} --data s3://bucket/table.csv");
    fails(folder.path(), &train, 2, &wanted);
    fails(
        folder.path(),
        "eval --run run --data s3://bucket/table.csv",
        2,
        &wanted,
    );
    assert_eq!(losses(folder.path(), "run").len(), 1);
}
