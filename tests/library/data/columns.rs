//! Parquet and Arrow: written data is read back in one order, and errors name file and row.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, DictionaryArray, FixedSizeBinaryArray, Float32Array, Int64Array,
    RecordBatch, StringArray, StructArray, UInt8Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field};
use gpipe::data::{Columns, Dataset, SampleOptions, Samples, Source};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;

use super::{all, says};

/// Rows with columns of every supported kind.
pub(super) fn batch(rows: Range<i64>) -> RecordBatch {
    let numbers = || rows.clone();
    let mut lists = ListBuilder::new(Int64Builder::new());
    for n in numbers() {
        lists.append_value((0..n % 4).map(Some));
    }
    let bytes: Vec<Vec<u8>> = numbers().map(|n| vec![n as u8; n as usize % 5]).collect();
    let bytes = BinaryArray::from_iter_values(&bytes);
    let label = UInt8Array::from_iter_values(numbers().map(|n| (n % 3) as u8));
    let image = StructArray::from(vec![
        (
            Arc::new(Field::new("bytes", DataType::Binary, false)),
            Arc::new(bytes) as ArrayRef,
        ),
        (
            Arc::new(Field::new("label", DataType::UInt8, false)),
            Arc::new(label) as ArrayRef,
        ),
    ]);
    let names: Vec<String> = numbers().map(|n| format!("name {}", n % 7)).collect();
    let coded: DictionaryArray<Int32Type> = names.iter().map(String::as_str).collect();
    let some = numbers().map(|n| (n % 2 == 0).then_some(n));
    let columns: [(&str, ArrayRef); 7] = [
        ("n", Arc::new(Int64Array::from_iter_values(numbers()))),
        (
            "x",
            Arc::new(Float32Array::from_iter_values(
                numbers().map(|n| n as f32 / 8.0),
            )),
        ),
        ("name", Arc::new(StringArray::from(names.clone()))),
        ("coded", Arc::new(coded)),
        ("tokens", Arc::new(lists.finish())),
        ("image", Arc::new(image)),
        ("some", Arc::new(some.collect::<Int64Array>())),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Writes a Parquet file with row groups of `group` rows.
pub(super) fn parquet(path: &Path, batch: &RecordBatch, group: usize, how: Compression) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_compression(how)
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Writes an Arrow file with record batches of `group` rows.
pub(super) fn arrow(path: &Path, batch: &RecordBatch, group: usize, how: Option<CompressionType>) {
    let options = IpcWriteOptions::default()
        .try_with_compression(how)
        .unwrap();
    let file = File::create(path).unwrap();
    let mut writer = FileWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
    for start in (0..batch.num_rows()).step_by(group) {
        let rows = group.min(batch.num_rows() - start);
        writer.write(&batch.slice(start, rows)).unwrap();
    }
    writer.finish().unwrap();
}

/// Writes the same as a stream, without the column of codes, whose dictionary may differ between batches.
pub(super) fn stream(path: &Path, batch: &RecordBatch, group: usize) {
    let batch = batch.project(&[0, 1, 2, 4, 5, 6]).unwrap();
    let file = File::create(path).unwrap();
    let mut writer = StreamWriter::try_new(file, &batch.schema()).unwrap();
    for start in (0..batch.num_rows()).step_by(group) {
        let rows = group.min(batch.num_rows() - start);
        writer.write(&batch.slice(start, rows)).unwrap();
    }
    writer.finish().unwrap();
}

/// A file of every kind, 60 rows in groups of 7.
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = batch(0..60);
    let path = |name: &str| folder.join(name);
    let zstd = Compression::ZSTD(ZstdLevel::default());
    parquet(&path("plain.parquet"), &all, 7, Compression::UNCOMPRESSED);
    parquet(&path("snappy.parquet"), &all, 7, Compression::SNAPPY);
    parquet(&path("zstd.parquet"), &all, 7, zstd);
    parquet(
        &path("gzip.parquet"),
        &all,
        7,
        Compression::GZIP(GzipLevel::default()),
    );
    arrow(&path("plain.arrow"), &all, 7, None);
    arrow(
        &path("lz4.feather"),
        &all,
        7,
        Some(CompressionType::LZ4_FRAME),
    );
    arrow(&path("zstd.arrow"), &all, 7, Some(CompressionType::ZSTD));
    stream(&path("stream.arrow"), &all, 7);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|own| own.unwrap().path())
        .collect();
    paths.sort();
    paths
}

#[test]
fn what_was_written_is_read_of_every_kind_of_file() {
    let folder = tempfile::tempdir().unwrap();
    let paths = files(folder.path());
    assert_eq!(paths.len(), 8);
    for path in paths {
        let rows = Columns::open([&path]).unwrap();
        assert_eq!(rows.len(), 60);
        for n in [0, 6, 7, 59, 20, 1] {
            let (row, number) = (rows.get(0, n).unwrap(), n as i64);
            assert_eq!(row.int("n").unwrap(), number, "{}", path.display());
            assert!((row.number("x").unwrap() - n as f64 / 8.0).abs() < 1e-9);
            assert_eq!(row.text("name").unwrap(), format!("name {}", n % 7));
            if rows.columns().contains(&"coded") {
                assert_eq!(row.text("coded").unwrap(), format!("name {}", n % 7));
            }
            assert_eq!(
                row.ints("tokens").unwrap(),
                (0..number % 4).collect::<Vec<_>>()
            );
            assert_eq!(row.floats("tokens").unwrap().len(), n % 4);
            assert_eq!(row.bytes("image.bytes").unwrap(), vec![n as u8; n % 5]);
            assert_eq!(row.int("image.label").unwrap(), number % 3);
            assert_eq!(row.is_null("some").unwrap(), n % 2 == 1);
            let wrong = row.int("name").unwrap_err().to_string();
            assert!(
                wrong.contains("column `name` has a text, not a whole number"),
                "{wrong}"
            );
            let missing = row.int("y").unwrap_err().to_string();
            assert!(
                missing.contains("no column `y`") && missing.contains("tokens"),
                "{missing}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any number of files, rows and groups, and any choice of columns.
    #[test]
    fn rows_of_several_files_follow_each_other(
        parts in prop::collection::vec((0_i64..50, 1_usize..20, any::<bool>()), 1..4),
        only in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (mut paths, mut wanted) = (Vec::new(), Vec::new());
        for (number, (rows, group, is_arrow)) in parts.iter().enumerate() {
            let first = 100 * number as i64;
            let all = batch(first..first + rows).project(&[0, 1]).unwrap();
            let path = folder.path().join(format!("{number}"));
            if *is_arrow {
                arrow(&path, &all, *group, None);
            } else {
                parquet(&path, &all, *group, Compression::SNAPPY);
            }
            wanted.extend(first..first + rows);
            paths.push(path);
        }
        let opened = Columns::open(&paths);
        if wanted.is_empty() {
            prop_assert!(opened.unwrap_err().to_string().contains("no row"));
            return Ok(());
        }
        let rows = opened.unwrap();
        let rows = if only { rows.only(&["n"]).unwrap() } else { rows };
        let read: Vec<i64> = (0..rows.len()).map(|n| rows.get(0, n).unwrap().int("n").unwrap()).collect();
        prop_assert_eq!(read, wanted);
        prop_assert_eq!(rows.get(0, 0).unwrap().number("x").is_err(), only);
    }
}

/// Shuffled, with many workers that request the same groups.
#[test]
fn workers_share_the_groups_and_lose_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    parquet(&path, &batch(0..3000), 100, Compression::SNAPPY);
    let batches = |workers| {
        let rows = Dataset::new(Columns::open([&path]).unwrap());
        let numbers = rows.map(|row| row.int("n")).shuffle(500, 3);
        all(numbers.batch(64).workers(workers)).unwrap()
    };
    let one = batches(1);
    assert_eq!(one, batches(4));
    let mut numbers: Vec<i64> = one.concat();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
}

#[test]
fn errors_name_the_file_and_the_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    // Numbers that a dictionary does not compress.
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values(
        (0..4000).map(|n| n * n * 7919),
    ));
    let all = RecordBatch::try_from_iter([("x", x)]).unwrap();
    parquet(&path, &all, 1000, Compression::UNCOMPRESSED);
    let good = fs::read(&path).unwrap();
    // In the second group: only its rows are lost.
    let written = ParquetMetaDataReader::new().parse_and_finish(&File::open(&path).unwrap());
    let page = written.unwrap().row_group(1).column(0).byte_range().0;
    let mut bad = good.clone();
    bad[page as usize] = 0xff;
    fs::write(&path, &bad).unwrap();
    let rows = Columns::open([&path]).unwrap();
    assert_eq!(
        rows.get(0, 999).unwrap().int("x").unwrap(),
        999 * 999 * 7919
    );
    let error = rows.get(0, 1500).unwrap_err();
    says(
        &error,
        &["a.parquet, row 1500", "group 1 is damaged", "column `x`"],
    );
    assert!(rows.get(0, 2000).is_ok());
    // A function's error has the row, too.
    let items =
        Dataset::new(Columns::open([&path]).unwrap()).map(|row| row.text("x").map(str::len));
    says(
        &items.get(0, 7).unwrap_err(),
        &["a.parquet, row 7", "a whole number, not a text"],
    );
    // Files of another kind, cut off, or with other columns.
    for (bytes, says_so) in [
        (
            &good[..good.len() / 2],
            "does not end as a Parquet file does",
        ),
        (
            b"nothing of the kind",
            "neither a Parquet file nor one of Arrow",
        ),
        (b"", "neither a Parquet file"),
    ] {
        fs::write(&path, bytes).unwrap();
        says(
            &Columns::open([&path]).unwrap_err(),
            &["a.parquet", says_so],
        );
    }
    fs::write(&path, &good).unwrap();
    let other = folder.path().join("b.arrow");
    arrow(&other, &batch(0..3), 3, None);
    let error = Columns::open([&path, &other]).unwrap_err();
    says(&error, &["b.arrow", "its columns are", "a.parquet"]);
    let error = Columns::open([&path]).unwrap().only(&["y"]).unwrap_err();
    says(&error, &["no column `y`", "x"]);
}

/// A column of one value takes a few bytes, whatever number of rows it declares.
#[test]
fn a_small_file_takes_no_large_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let zeros = vec![[0_u8; 1024]; 80_000];
    let zeros: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(zeros.iter()).unwrap());
    let all = RecordBatch::try_from_iter([("x", zeros)]).unwrap();
    parquet(&path, &all, 80_000, Compression::SNAPPY);
    assert!(fs::metadata(&path).unwrap().len() < 100_000);
    let rows = Columns::open([&path]).unwrap();
    says(
        &rows.get(0, 0).unwrap_err(),
        &["a.parquet, row 0", "times as many"],
    );
    // With smaller groups the file is read.
    parquet(&path, &all, 10_000, Compression::SNAPPY);
    let rows = Columns::open([&path]).unwrap();
    assert_eq!(rows.get(0, 50_000).unwrap().bytes("x").unwrap(), [0; 1024]);
}

#[test]
fn a_table_of_columns_is_one_to_train_on() {
    let folder = tempfile::tempdir().unwrap();
    let plain = |rows: Range<i64>| batch(rows).project(&[0, 1, 2]).unwrap();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    parquet(
        &parts.join("train-0.parquet"),
        &plain(0..30),
        7,
        Compression::SNAPPY,
    );
    parquet(
        &parts.join("train-1.parquet"),
        &plain(30..60),
        7,
        Compression::SNAPPY,
    );
    parquet(
        &parts.join("test-0.parquet"),
        &plain(60..80),
        7,
        Compression::SNAPPY,
    );
    let text = folder.path().join("a.csv");
    let lines: Vec<String> = (0..60)
        .map(|n| format!("{n},{},name {}\n", n as f32 / 8.0, n % 7))
        .collect();
    fs::write(&text, format!("n,x,name\n{}", lines.concat())).unwrap();
    let options = SampleOptions::default().held_out(0.0);
    let (own, csv) = (
        Samples::open(&parts, &options).unwrap(),
        Samples::open(&text, &options).unwrap(),
    );
    assert_eq!(own.class_names(), csv.class_names());
    assert_eq!((own.input(), own.held_out_len()), (&[2_i64][..], 20));
    let first = |samples: &Samples| samples.batches(16).load().unwrap().next().unwrap().unwrap();
    assert_eq!(first(&own), first(&csv));
    // Values that are neither a number nor a text, and missing values.
    let path = folder.path().join("b.parquet");
    for (columns, says_so) in [
        ([0, 4], "neither a number nor a text"),
        ([6, 0], "has no value"),
    ] {
        parquet(
            &path,
            &batch(0..9).project(&columns).unwrap(),
            4,
            Compression::SNAPPY,
        );
        says(
            &Samples::open(&path, &options).unwrap_err(),
            &["b.parquet, row", says_so],
        );
    }
}
