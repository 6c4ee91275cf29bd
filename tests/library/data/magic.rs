//! A file given to the wrong reader: the error names the right one.

use std::fs;
use std::path::Path;

use gpipe::data::{Array, Csv, DataError, Idx, Lines, Tars, TextSet, TfRecordWriter, TfRecords};
use gpipe::tch::Tensor;
use zip::CompressionMethod;

use super::samples::{f32s, npy, npz};
use super::tars::tar;

/// A file of each kind, its name in messages, and its reader.
fn files(folder: &Path) -> Vec<(&'static str, &'static str, &'static str)> {
    let path = |name: &str| folder.join(name);
    let array = npy("<f4", "(2,)", false, &f32s(&[1.0, 2.0]));
    fs::write(path("x.npy"), &array).unwrap();
    npz(&path("x.npz"), &[("x", array)], CompressionMethod::Stored);
    let x = Tensor::from_slice(&[1.0_f32, 2.0]);
    Tensor::write_safetensors(&[("x", &x)], path("x.safetensors")).unwrap();
    fs::write(
        path("x.idx"),
        [&[0, 0, 8, 1, 0, 0, 0, 20][..], &[5; 20]].concat(),
    )
    .unwrap();
    let mut records = TfRecordWriter::create(&path("x.tfrecord")).unwrap();
    records.write(b"one").unwrap();
    records.finish().unwrap();
    fs::write(path("x.tar"), tar(&[("0.jpg".to_owned(), vec![1])])).unwrap();
    let header = [20_240_520_u32, 1, 0].map(u32::to_le_bytes).concat();
    fs::write(path("x.bin"), [header, vec![0; 1012]].concat()).unwrap();
    fs::write(path("x.parquet"), b"PAR1\x15\x04\x15\x10").unwrap();
    fs::write(path("x.h5"), b"\x89HDF\r\n\x1a\n").unwrap();
    fs::write(path("x.png"), b"\x89PNG\r\n\x1a\n").unwrap();
    fs::write(path("x.tar.gz"), b"\x1f\x8b\x08\x00").unwrap();
    vec![
        ("x.npy", "a NumPy file", "Array::npy"),
        ("x.npz", "a zip archive", "Array::npz"),
        ("x.safetensors", "a safetensors file", "Array::open"),
        ("x.idx", "an IDX file", "Idx::open"),
        ("x.tfrecord", "a file of TFRecords", "TfRecords::open"),
        ("x.tar", "a tar file", "Tars::open"),
        ("x.bin", "a file of tokens of llm.c", "Tokens::open"),
        ("x.parquet", "a Parquet or Arrow file", "Columns::open"),
        ("x.h5", "an HDF5 file, which is not read", "numpy.savez"),
        ("x.png", "an image", "folder of its class"),
        ("x.tar.gz", "compressed, with gzip", "decompress it"),
    ]
}

/// A reader: the file that it takes, and its error for a path.
type Reader = (&'static str, fn(&Path) -> Option<String>);

fn said<T>(read: Result<T, DataError>) -> Option<String> {
    read.err().map(|error| error.to_string())
}

const READERS: [Reader; 9] = [
    ("x.safetensors", |path| said(Array::open(path, "x"))),
    ("x.npy", |path| said(Array::npy(path))),
    ("x.npz", |path| said(Array::npz(path, "x"))),
    ("x.idx", |path| said(Idx::open(path))),
    ("x.tfrecord", |path| said(TfRecords::open([path]))),
    ("x.tar", |path| said(Tars::open([path]))),
    ("x.csv", |path| said(Csv::open(path))),
    ("x.txt", |path| said(Lines::open(path))),
    ("x.txt", |path| {
        TextSet::read(path).err().map(|error| error.to_string())
    }),
];

/// Regression test: a NumPy file was reported as a safetensors file with a header of 379676406402707 bytes.
#[test]
fn each_reader_tells_another_kind_and_names_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    for (number, (own, read)) in READERS.into_iter().enumerate() {
        for (name, what, call) in &files {
            let told = read(&folder.path().join(name));
            if *name == own {
                assert_eq!(told, None, "{own}");
                continue;
            }
            let told = told.unwrap_or_default();
            // Some readers decompress, and UTF-8 may be any kind of text.
            let plain = matches!((own, *name), ("x.idx" | "x.tfrecord", "x.tar.gz"));
            let is_text = number == 8 && matches!(*name, "x.tar" | "x.idx" | "x.parquet");
            if !plain && !is_text {
                let fits = told.contains(what) && told.contains(call) && told.contains(name);
                assert!(fits, "{own} reads {name}: {told}");
            }
        }
    }
}

#[cfg(feature = "parquet")]
#[test]
fn columns_tell_another_kind_too() {
    let folder = tempfile::tempdir().unwrap();
    for (name, what, call) in files(folder.path()) {
        if name != "x.parquet" {
            let told = said(gpipe::data::Columns::open([folder.path().join(name)]));
            let told = told.unwrap_or_default();
            assert!(told.contains(what) && told.contains(call), "{name}: {told}");
        }
    }
}

/// A text may begin with the letters of a magic number.
#[test]
fn a_text_that_begins_like_another_kind_is_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    for text in [
        "PAR1,y\n1,2\n",
        "ARROW1,y\n1,2\n",
        "BZh,y\n1,2\n",
        "PARE;y\n1;2\n",
    ] {
        fs::write(&path, text).unwrap();
        assert!(Csv::open(&path).is_ok(), "{text}");
    }
}
