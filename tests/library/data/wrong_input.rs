//! Every source on invalid files: the error names the file, the byte for wrong bytes, and the remedy unless
//! it is obvious.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpipe::data::{
    Array, Csv, Dataset, Idx, Lines, Source, Tars, TextSet, TfRecordWriter, TfRecords, Tokens,
};
use gpipe::tch::Tensor;

/// Opens a file and reads all of it.
type Open = fn(&Path) -> anyhow::Result<()>;

fn all<S: Source>(source: &S) -> anyhow::Result<()> {
    for index in 0..source.len() {
        source.get(0, index)?;
    }
    Ok(())
}

/// Kinds of sources: a file name, and a function that opens it.
const SOURCES: [(&str, Open); 5] = [
    ("a.txt", |path| Ok(TextSet::read(path)?.require(4)?)),
    ("a.u16.bin", |path| all(&Tokens::open(path)?.windows(4)?)),
    ("a-idx3-ubyte", |path| all(&Idx::open(path)?)),
    ("a.tfrecord", |path| all(&TfRecords::open([path])?)),
    ("a.safetensors", |path| all(&Array::open(path, "x")?)),
];

fn good(path: &Path) {
    let name = path.file_name().unwrap().to_str().unwrap();
    match name {
        "a.txt" => fs::write(path, "the whale! é".repeat(10)).unwrap(),
        "a.u16.bin" => fs::write(path, [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]).unwrap(),
        "a-idx3-ubyte" => fs::write(path, [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]).unwrap(),
        "a.tfrecord" => {
            let mut writer = TfRecordWriter::create(path).unwrap();
            writer.write(b"call me").unwrap();
            writer.write(b"Ishmael").unwrap();
            writer.finish().unwrap();
        }
        _ => {
            let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0]);
            Tensor::write_safetensors(&[("x", &x)], path).unwrap();
        }
    }
}

/// Checks that each source's error for the file that `make` wrote has all of its parts; `PATH` in a part
/// stands for the file.
fn each_says(make: impl Fn(&Path), wanted: [&[&str]; 5]) {
    for ((name, open), wanted) in SOURCES.into_iter().zip(wanted) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        good(&path);
        open(&path).unwrap();
        make(&path);
        let error = format!("{:#}", open(&path).expect_err(name));
        for part in wanted {
            let part = part.replace("PATH", path.to_str().unwrap());
            assert!(error.contains(&part), "{name}: {part} missing in: {error}");
        }
    }
}

#[test]
fn a_missing_file() {
    let wanted: &[&str] = &["cannot read PATH: No such file"];
    each_says(|path| fs::remove_file(path).unwrap(), [wanted; 5]);
}

#[test]
fn a_folder() {
    let make = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    let wanted: &[&str] = &["cannot read PATH: is a directory"];
    each_says(make, [wanted; 5]);
}

/// Regression test: opening it waited forever for a writer.
#[test]
fn a_pipe() {
    let make = |path: &Path| {
        fs::remove_file(path).unwrap();
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    let wanted: &[&str] = &["cannot read PATH: this is not a file but a pipe"];
    each_says(make, [wanted; 5]);
}

#[test]
fn texts_tables_and_tar_files_that_are_no_files() {
    let others: [(&str, Open); 3] = [
        ("a.txt", |path| all(&Lines::open(path)?)),
        ("a.csv", |path| all(&Csv::open(path)?)),
        ("a.tar", |path| all(&Tars::open([path])?)),
    ];
    for (name, open) in others {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let says = |wanted: &str| {
            let error = format!("{:#}", open(&path).expect_err(name));
            let wanted = wanted.replace("PATH", path.to_str().unwrap());
            assert!(
                error.contains(&wanted),
                "{name}: {wanted} missing in: {error}"
            );
        };
        says("cannot read PATH: No such file");
        fs::create_dir(&path).unwrap();
        says("cannot read PATH: is a directory");
        fs::remove_dir(&path).unwrap();
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        says("cannot read PATH: this is not a file but a pipe");
    }
}

#[test]
fn an_empty_file() {
    let make = |path: &Path| fs::write(path, []).unwrap();
    each_says(
        make,
        [
            &["too short: 0 characters"],
            &["no window of 4 tokens", "in 0 tokens of PATH"],
            &["PATH, byte 0", "the file ends inside of the four bytes"],
            &["PATH is empty"],
            &["PATH, byte 0", "no whole safetensors file", "copied whole"],
        ],
    );
}

#[test]
fn a_file_of_something_else() {
    let make =
        |path: &Path| fs::write(path, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR-of-an-image!").unwrap();
    each_says(
        make,
        [
            &["PATH, byte 0", "this is an image"],
            // Any even number of bytes are tokens.
            &["PATH, byte 28", "1 of a token's 2 bytes"],
            &["PATH, byte 0", "this is an image"],
            &["PATH, byte 0", "this is an image"],
            &["PATH, byte 0", "this is an image"],
        ],
    );
}

#[test]
fn a_file_that_was_cut_off() {
    let make = |path: &Path| {
        let whole = fs::read(path).unwrap();
        fs::write(path, &whole[..whole.len() - 1]).unwrap();
    };
    each_says(
        make,
        [
            &["PATH is not UTF-8 text: byte 128"],
            &["PATH, byte 8", "copied whole"],
            &["PATH, byte 10", "2 of the 3 bytes", "copied whole"],
            &["PATH, byte 23", "the file ends", "copied whole"],
            &["PATH, byte 0", "no whole safetensors file", "copied whole"],
        ],
    );
}

/// The bytes do not show a cut at a token's end; the file beside them does.
#[test]
fn tokens_that_were_cut_off_between_two() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    Tokens::write(&path, &[1, 2, 3, 4, 5], 6).unwrap();
    assert_eq!(Tokens::open(&path).unwrap().len(), 5);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..6]).unwrap();
    super::says(
        &Tokens::open(&path).unwrap_err(),
        &[
            "a.bin, byte 6",
            "has 3 tokens",
            "a.bin.json says 5",
            "copied whole",
        ],
    );
}

/// Files are read on demand: if one is truncated meanwhile, reading its end is an error. Regression test:
/// with memory mapping, the process was killed.
#[test]
fn a_file_that_is_cut_off_while_it_is_read() {
    let cut = |path: &Path, bytes: u64| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(bytes).unwrap();
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.u16.bin");
    fs::write(&path, [1, 0].repeat(100_000)).unwrap();
    let windows = Tokens::open(&path).unwrap().windows(10).unwrap();
    windows.get(0, 9000).unwrap();
    let whole = windows.identity();
    cut(&path, 100);
    windows.get(0, 2).unwrap();
    let parts = ["a.u16.bin, byte 180000", "has 100 bytes, and had 200000"];
    super::says(&windows.get(0, 9000).unwrap_err(), &parts);
    assert_ne!(windows.identity(), whole);

    let path = folder.path().join("a.safetensors");
    let x = Tensor::zeros(
        [1000, 10],
        (gpipe::tch::Kind::Float, gpipe::tch::Device::Cpu),
    );
    Tensor::write_safetensors(&[("x", &x)], &path).unwrap();
    let array = Array::open(&path, "x").unwrap();
    assert_eq!(array.get(0, 999).unwrap(), x.get(999));
    let whole = array.identity();
    cut(&path, 4000);
    assert_eq!(array.get(0, 0).unwrap(), x.get(0));
    super::says(
        &array.get(0, 999).unwrap_err(),
        &["a.safetensors, byte ", "has 4000 bytes"],
    );
    assert_ne!(array.identity(), whole);
}

/// Same names, same sizes, different content: a saved position is not valid in it.
#[test]
fn other_content_in_files_of_the_same_size_is_other_data() {
    for (name, change) in [("a-idx3-ubyte", 10), ("a.safetensors", 0), ("a.u16.bin", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        good(&path);
        let identity = || match name {
            "a-idx3-ubyte" => Idx::open(&path).unwrap().identity(),
            "a.safetensors" => Array::open(&path, "x").unwrap().identity(),
            _ => Tokens::open(&path).unwrap().windows(4).unwrap().identity(),
        };
        let before = identity();
        let mut bytes = fs::read(&path).unwrap();
        let place = if change == 0 { bytes.len() - 1 } else { change };
        bytes[place] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_ne!(identity(), before, "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tfrecord");
    good(&path);
    let batches = || Dataset::new(TfRecords::open([&path]).unwrap()).batch_with(1, Ok);
    let state = batches().load().unwrap().state();
    batches().resume(&state).load().unwrap();
    let mut writer = TfRecordWriter::create(&path).unwrap();
    writer.write(b"call me").unwrap();
    writer.write(b"Queequg").unwrap();
    writer.finish().unwrap();
    let error = batches().resume(&state).load().unwrap_err();
    super::says(
        &error,
        &["other data", "2 TFRecords in 1 files of 46 bytes"],
    );
}
