//! Texts with one row per item.

use std::fs;
use std::path::Path;

use csv::WriterBuilder;
use gpipe::data::{Csv, DataError, Dataset, Lines, Source};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::says;

fn texts(path: &Path) -> Vec<String> {
    let lines = Lines::open(path).unwrap();
    (0..lines.len()).map(|n| lines.get(0, n).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lines_are_those_of_the_text(text in "(\r?\n|[a-zé ]){0,60}") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, &text).unwrap();
        prop_assert_eq!(texts(&path), text.lines().map(str::to_owned).collect::<Vec<_>>());
    }

    /// Any cell contents, including quotes, separators and line ends.
    #[test]
    fn the_cells_of_a_table_are_what_was_written(
        rows in prop::collection::vec(prop::collection::vec("[a-c\", \n\r;]{0,6}", 3), 0..20),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let mut writer = WriterBuilder::new().from_path(&path).unwrap();
        writer.write_record(["one", "two", "three"]).unwrap();
        rows.iter().for_each(|row| writer.write_record(row).unwrap());
        writer.flush().unwrap();
        let table = Csv::open(&path).unwrap();
        let read = (0..table.len()).map(|n| table.get(0, n).unwrap().cells().to_vec());
        prop_assert_eq!(read.collect::<Vec<_>>(), rows);
    }
}

#[test]
fn json_comes_as_values_or_as_a_type_and_errors_name_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(
        &path,
        "\u{feff}{\"a\": 1}\n\n  \r\n{\"a\": [2]}\r\n{\"a\": \n[1]",
    )
    .unwrap();
    let values = Lines::json::<Value>(&path).unwrap();
    assert_eq!(values.len(), 4);
    assert_eq!(values.get(0, 0).unwrap(), json!({"a": 1}));
    assert_eq!(values.get(0, 1).unwrap(), json!({"a": [2]}));
    says(
        &values.get(0, 2).unwrap_err(),
        &["a.jsonl, line 5", "no such JSON"],
    );
    let rows = Lines::json::<Vec<i64>>(&path).unwrap();
    says(
        &rows.get(0, 0).unwrap_err(),
        &["a.jsonl, line 1", "invalid type"],
    );
    assert_eq!(rows.get(0, 3).unwrap(), [1]);
    let skipped = rows.batch(1).skip_bad(3).load().unwrap();
    assert_eq!(skipped.map(Result::unwrap).count(), 1);
}

#[test]
fn tables_are_read_by_the_names_of_their_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let open = |text: &str| -> Result<Csv, DataError> {
        fs::write(&path, text).unwrap();
        Csv::open(&path)
    };
    let table = open("\u{feff}name;size\n\"a\nb\";2\n\nc;x\nd\n").unwrap();
    assert_eq!(table.columns(), ["name", "size"]);
    let row = table.get(0, 0).unwrap();
    assert_eq!(
        (row.text("name").unwrap(), row.number("size").unwrap()),
        ("a\nb", 2.0)
    );
    let error = row.text("weight").unwrap_err().to_string();
    assert!(
        error.contains("no column `weight`") && error.contains("\"size\""),
        "{error}"
    );
    let numbers = Dataset::new(table).map(|row| row.number("size"));
    says(
        &numbers.get(0, 1).unwrap_err(),
        &["a.csv, line 5", "`x` is no number"],
    );
    says(
        &numbers.get(0, 2).unwrap_err(),
        &[
            "a.csv, line 6",
            "there is 1 cell, but the header has 2: add what is missing",
        ],
    );
    says(&open("").unwrap_err(), &["a.csv", "no header"]);
    says(
        &open("a,b\n1,2\n3,\"4\n5,6\n").unwrap_err(),
        &[
            "a.csv, line 3",
            "a double quote is opened here and never closed",
        ],
    );
    says(&open("a,a\n").unwrap_err(), &["line 1", "two columns `a`"]);
    fs::write(&path, b"a,b\n\xff,1\n").unwrap();
    says(
        &Csv::open(&path).unwrap().get(0, 0).unwrap_err(),
        &["line 2", "not UTF-8"],
    );
    fs::write(&path, b"a\n\xff\n").unwrap();
    says(
        &Lines::open(&path).unwrap().get(0, 1).unwrap_err(),
        &["line 2", "not UTF-8"],
    );
}

/// An unclosed quote would make the rest of the file one row, whatever its size.
#[test]
fn a_row_without_end_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let file = fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut &file, b"a,b\n1,\"2\n").unwrap();
    file.set_len(65 << 20).unwrap();
    says(
        &Csv::open(&path).unwrap_err(),
        &["line 2", "64 MiB", "double quote left open"],
    );
    says(
        &Lines::open(&path).unwrap_err(),
        &["line 3", "64 MiB", "is this a text"],
    );
}

#[test]
fn a_text_that_was_cut_off_since_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "one\ntwo\nthree\n").unwrap();
    let lines = Lines::open(&path).unwrap();
    fs::write(&path, "one\n").unwrap();
    assert_eq!(lines.get(0, 0).unwrap(), "one");
    says(
        &lines.get(0, 2).unwrap_err(),
        &["a.txt, byte 8", "cut off since"],
    );
}
