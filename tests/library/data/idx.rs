//! IDX files, intact and damaged.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use gpipe::data::{DataError, Dataset, Idx, Source};
use gpipe::tch::Kind;

use super::{numbers, says};

/// Three images of 2 x 2.
const IMAGES: &[u8] = &[
    0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255,
];

fn file(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("images-idx3-ubyte");
    fs::write(&path, bytes).unwrap();
    path
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(bytes).unwrap();
    zipped.finish().unwrap()
}

#[test]
fn plain_and_compressed_files_have_the_same_items() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [IMAGES.to_vec(), zipped(IMAGES)] {
        let path = file(folder.path(), &bytes);
        let images = Idx::open(&path).unwrap();
        assert_eq!(
            (images.shape(), images.kind()),
            (&[3, 2, 2][..], Kind::Uint8)
        );
        let place = images.place(0, 2).to_string();
        assert!(place.ends_with("images-idx3-ubyte, sample 2"), "{place}");
        let mut batches = Dataset::new(images).batch(2).load().unwrap();
        batches.next();
        let last = batches.next().unwrap().unwrap();
        assert_eq!(last.size(), [1, 2, 2]);
        assert_eq!(numbers(&last), [9, 10, 11, 255]);
    }
}

#[test]
fn wide_numbers_are_big_endian() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(
        folder.path(),
        &[0, 0, 0x0c, 1, 0, 0, 0, 2, 0, 0, 1, 0, 255, 255, 255, 254],
    );
    let labels = Idx::open(&path).unwrap();
    let labels = [0, 1].map(|index| i64::try_from(labels.get(0, index).unwrap()).unwrap());
    assert_eq!(labels, [256, -2]);
    let path = file(
        folder.path(),
        &[0, 0, 0x0d, 1, 0, 0, 0, 1, 0xbf, 0x80, 0, 0],
    );
    let float = Idx::open(&path).unwrap().get(0, 0).unwrap();
    assert_eq!(
        (float.kind(), f64::try_from(float).unwrap()),
        (Kind::Float, -1.0)
    );
}

#[test]
fn damaged_files_are_named_with_the_byte_and_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let error = |bytes: &[u8]| Idx::open(&file(folder.path(), bytes)).unwrap_err();
    let with = |place: usize, byte: u8| {
        let mut bytes = IMAGES.to_vec();
        bytes[place] = byte;
        bytes
    };
    says(&error(b"PK"), &["images-idx3-ubyte, byte 2", "ends inside"]);
    says(&error(b"hello, world"), &["byte 0", "no IDX file", "00 00"]);
    says(&error(&with(2, 7)), &["byte 2", "0x07", "types of numbers"]);
    says(&error(&with(3, 0)), &["byte 3", "without dimensions"]);
    says(&error(&IMAGES[..9]), &["ends inside of the sizes"]);
    let cut = &IMAGES[..IMAGES.len() - 3];
    let parts = ["byte 25", "9 of the 12 bytes", "[3, 2, 2]", "copied whole"];
    says(&error(cut), &parts);
    says(
        &error(&[IMAGES, &[0]].concat()),
        &["byte 28", "goes on after the 12"],
    );
    let huge = [&[0, 0, 0x0e, 4][..], &[255; 16]].concat();
    says(&error(&huge), &["too large for any memory"]);
    let missing = Idx::open(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, DataError::File { .. }), "{missing}");
    says(&missing, &["cannot read", "none"]);
}

#[test]
fn damaged_compression_is_told_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let whole = zipped(IMAGES);
    for length in 3..whole.len() {
        let error = Idx::open(&file(folder.path(), &whole[..length])).unwrap_err();
        says(
            &error,
            &[
                "images-idx3-ubyte, byte ",
                "compressed data is damaged or ends",
            ],
        );
    }
    let mut flipped = whole.clone();
    let sum = whole.len() - 6;
    flipped[sum] ^= 1;
    let error = Idx::open(&file(folder.path(), &flipped)).unwrap_err();
    says(&error, &["compressed data is damaged"]);
}

/// The header declares the size, and compression hides the actual one. Regression test: a file of a megabyte
/// took one and a half gigabytes.
#[test]
fn a_small_file_that_is_a_large_array_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (block, blocks) = (1_u32 << 20, 80);
    let header = [&[0, 0, 8, 1][..], &(block * blocks).to_be_bytes()].concat();
    let zeros = zipped(&vec![0; block as usize]);
    let bomb = [zipped(&header), zeros.repeat(blocks as usize)].concat();
    let error = Idx::open(&file(folder.path(), &bomb)).unwrap_err();
    let parts = ["images-idx3-ubyte", "80.0 MiB", "times", "decompress"];
    says(&error, &parts);
    assert!(error.is_wrong_use());
    // A file as dense as images is read.
    let header = [&[0, 0, 8, 1][..], &block.to_be_bytes()].concat();
    let small = [zipped(&header), zeros].concat();
    assert_eq!(
        Idx::open(&file(folder.path(), &small)).unwrap().len(),
        1 << 20
    );
}
