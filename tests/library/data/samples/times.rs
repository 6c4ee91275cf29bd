//! Columns of times: one moment is one number, in any notation and kind of file.

use std::fs;
use std::path::Path;

use gpipe::data::{Normalise, SampleOptions, Samples};

use super::{all, floats, refused};

fn options() -> SampleOptions {
    SampleOptions::default().numbers().held_out(0.0)
}

/// A table of these times, and the resulting inputs.
fn read(path: &Path, times: &[&str]) -> (Samples, Vec<f64>) {
    let rows: Vec<_> = times.iter().map(|own| format!("{own},1")).collect();
    fs::write(path, format!("when,y\n{}\n", rows.join("\n"))).unwrap();
    let samples = Samples::open(path, &options().normalise(Normalise::None)).unwrap();
    let (x, _) = all(&samples);
    (samples, floats(&x))
}

/// Regression test: the offset was dropped, so one moment was read as two, hours apart.
#[test]
fn one_moment_is_the_same_whatever_its_zone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let (samples, utc) = read(&path, &["2024-03-31T01:00:00Z", "2024-12-31T23:30:00Z"]);
    let (_, berlin) = read(&path, &["2024-03-31T03:00:00+02:00", "2025-01-01 00:30+01"]);
    assert_eq!(utc, berlin);
    let said = samples.notes().join("; ");
    assert!(
        said.contains("`when` is 7 inputs") && said.contains("the day, in UTC"),
        "{said}"
    );
    // Without a zone they are local times.
    let (samples, clocks) = read(&path, &["2024-03-31T01:00:00", "2024-12-31T23:30:00"]);
    assert_eq!(utc, clocks);
    assert!(!samples.notes().join("; ").contains("UTC"));
}

#[test]
fn times_with_and_without_a_zone_are_not_one_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let wanted = |line: &str, what: &'static str| [line.to_owned(), what.to_owned()];
    for (times, [line, what]) in [
        (
            ["2024-03-31T01:00:00Z", "2024-03-31T02:00:00"],
            wanted(
                "line 3",
                "`2024-03-31T02:00:00` tells no zone, and others tell theirs",
            ),
        ),
        (
            ["2024-03-31T01:00:00", "2024-03-31T02:00:00Z"],
            wanted(
                "line 3",
                "`2024-03-31T02:00:00Z` tells its zone, and others tell none",
            ),
        ),
        (
            ["2024-03-31", "2024-03-31T02:00:00Z"],
            wanted("line 2", "`2024-03-31` tells no zone"),
        ),
    ] {
        fs::write(&path, format!("when,y\n{},1\n{},2\n", times[0], times[1])).unwrap();
        refused(
            &path,
            &options(),
            &[&line, "column `when`", &what, "in UTC"],
        );
    }
    // Later data has none either.
    let (samples, _) = read(&path, &["2024-03-31T01:00:00Z", "2024-03-31T02:00:00Z"]);
    let later = folder.path().join("later.csv");
    fs::write(&later, "when\n2024-03-31T01:00:00\n").unwrap();
    let kept = options().kept(&samples.kept()).unwrap();
    let error = Samples::unlabelled(&later, &kept).unwrap_err().to_string();
    assert!(error.contains("tells no zone"), "{error}");
}

#[cfg(feature = "parquet")]
mod columns {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};
    use parquet::basic::Compression;

    use super::super::super::columns::{arrow, parquet};
    use super::*;

    /// Regression test: in Parquet the numbers were in UTC without a zone, and fractions of a second were
    /// dropped.
    #[test]
    fn a_table_has_the_same_inputs_as_csv_and_in_columns() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let times = vec![1_711_846_800_250, 1_735_687_800_000];
        for zone in [Some("Europe/Berlin"), Some("+02:00"), None] {
            let own = TimestampMillisecondArray::from(times.clone());
            let own: ArrayRef = match zone {
                Some(zone) => Arc::new(own.with_timezone(zone)),
                None => Arc::new(own),
            };
            let y: ArrayRef = Arc::new(Int64Array::from(vec![1, 1]));
            let batch = RecordBatch::try_from_iter([("when", own), ("y", y)]).unwrap();
            parquet(&path("t.parquet"), &batch, 8, Compression::UNCOMPRESSED);
            arrow(&path("t.arrow"), &batch, 8, None);
            let z = if zone.is_some() { "Z" } else { "" };
            let text =
                ["2024-03-31T01:00:00.25", "2024-12-31T23:30:00"].map(|own| format!("{own}{z}"));
            let (csv, wanted) = read(&path("t.csv"), &[&text[0], &text[1]]);
            for name in ["t.parquet", "t.arrow"] {
                let options = options().normalise(Normalise::None);
                let samples = Samples::open(&path(name), &options).unwrap();
                assert_eq!(floats(&all(&samples).0), wanted, "{name} {zone:?}");
                assert_eq!(samples.notes(), csv.notes(), "{name} {zone:?}");
            }
        }
    }
}
