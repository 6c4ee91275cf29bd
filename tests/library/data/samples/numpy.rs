//! NumPy's formats, byte by byte.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use gpipe::data::{Array, SampleOptions, Samples, Source as _};
use gpipe::tch::{Kind, Tensor};
use zip::write::FileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{all, floats, open, refused};

/// An array in the format of `numpy.save`.
pub(in crate::data) fn npy(descr: &str, shape: &str, fortran: bool, data: &[u8]) -> Vec<u8> {
    let fortran = if fortran { "True" } else { "False" };
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), data].concat()
}

pub(in crate::data) fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

pub(super) fn i64s(numbers: &[i64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// Writes files as `numpy.savez` or `savez_compressed` does.
pub(in crate::data) fn npz(path: &Path, files: &[(&str, Vec<u8>)], method: CompressionMethod) {
    let mut archive = ZipWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in files {
        let options = FileOptions::default().compression_method(method);
        // NumPy allows for any size.
        archive
            .start_file(format!("{name}.npy"), options.large_file(true))
            .unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn every_kind_of_number_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let wanted = Tensor::from_slice(&[0.0, 1.0, 1.0, 0.0, 2.0, 3.0]).view([3, 2]);
    for (descr, kind) in [
        ("<f2", Kind::Half),
        ("<f4", Kind::Float),
        ("<f8", Kind::Double),
        ("|u1", Kind::Uint8),
        ("|i1", Kind::Int8),
        ("<i2", Kind::Int16),
        ("<i4", Kind::Int),
        ("<i8", Kind::Int64),
        ("|b1", Kind::Bool),
    ] {
        let numbers = wanted.to_kind(kind);
        let mut bytes = vec![0; 6 * kind.elt_size_in_bytes()];
        numbers.copy_data_u8(&mut bytes, 6);
        fs::write(&path, npy(descr, "(3, 2)", false, &bytes)).unwrap();
        let array = Array::npy(&path).unwrap();
        assert_eq!((array.kind(), array.shape()), (kind, &[3, 2][..]));
        assert_eq!(array.get(0, 2).unwrap(), numbers.get(2), "{descr}");
        assert_eq!(array.items(1..3).unwrap(), numbers.narrow(0, 1, 2));
    }
    // Booleans other than 0 and 1 are read as NumPy reads them.
    fs::write(&path, npy("|b1", "(3,)", false, &[0, 7, 255])).unwrap();
    let truths = Array::npy(&path).unwrap().items(0..3).unwrap();
    assert_eq!(floats(&truths), [0.0, 1.0, 1.0]);
}

#[test]
fn an_archive_is_read_stored_or_compressed_with_its_test_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.npz");
    let x = npy(
        "<f4",
        "(4, 2)",
        false,
        &f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    );
    let y = npy("<i8", "(4,)", false, &i64s(&[0, 2, 1, 2]));
    let test = npy("<f4", "(1, 2)", false, &f32s(&[8.0, 9.0]));
    let one = npy("<i8", "(1,)", false, &i64s(&[1]));
    let files = [
        ("x_train", x),
        ("y_train", y),
        ("x_test", test),
        ("y_test", one),
    ];
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        npz(&path, &files, method);
        let samples = open(&path).unwrap();
        assert_eq!((samples.train_len(), samples.held_out_len()), (4, 1));
        assert_eq!((samples.input(), samples.classes()), (&[2][..], Some(3)));
        let (x, y) = all(&samples);
        assert_eq!(floats(&x), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(
            (y.kind(), floats(&y)),
            (Kind::Int64, vec![0.0, 2.0, 1.0, 2.0])
        );
        let mut test = samples.held_out(8).unwrap().load().unwrap();
        assert_eq!(floats(&test.next().unwrap().unwrap().0), [8.0, 9.0]);
    }
}

#[test]
fn a_folder_of_arrays_is_the_same_as_its_input_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(
        folder.join("x.npy"),
        npy("|u1", "(2, 1, 2, 2)", false, &[0, 255, 51, 102, 1, 2, 3, 4]),
    )
    .unwrap();
    fs::write(
        folder.join("y.npy"),
        npy("<f4", "(2, 1)", false, &f32s(&[0.0, 1.0])),
    )
    .unwrap();
    for path in [folder.to_owned(), folder.join("x.npy")] {
        let samples = open(&path).unwrap();
        assert_eq!(
            (samples.input(), samples.target()),
            (&[1, 2, 2][..], &[1][..])
        );
        // Integers are classes, whatever their type, and bytes are scaled.
        let samples = samples.shaped(&[4], &[]).unwrap();
        let (x, y) = all(&samples);
        assert_eq!(
            (x.size(), y.size(), y.kind()),
            (vec![2, 4], vec![2], Kind::Int64)
        );
        assert_eq!(floats(&x)[..2], [0.0, 1.0]);
    }
    let own = SampleOptions::default()
        .numbers()
        .normalise("none".parse().unwrap());
    let (x, y) = all(&Samples::open(folder, &own).unwrap());
    assert_eq!(
        (floats(&x)[1], y.kind(), y.size()),
        (255.0, Kind::Float, vec![2, 1])
    );
}

#[test]
fn what_cannot_be_trained_on_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = (folder.join("x.npy"), folder.join("y.npy"));
    let write = |file: &Path, bytes: Vec<u8>| fs::write(file, bytes).unwrap();
    let says = |wanted: &[&str]| refused(folder, &SampleOptions::default(), wanted);
    write(&y, npy("<i8", "(2,)", false, &i64s(&[0, 1])));
    write(&x, npy("<f4", "(2, 2)", true, &f32s(&[0.0; 4])));
    says(&["x.npy", "Fortran", "ascontiguousarray"]);
    write(&x, npy(">f4", "(2, 2)", false, &f32s(&[0.0; 4])));
    says(&["x.npy", ">f4", "big-endian"]);
    write(&x, npy("<f4", "(2, 3)", false, &f32s(&[0.0; 4])));
    says(&["x.npy, byte 128", "[2, 3]", "16 bytes", "copied whole"]);
    write(&x, npy("<f4", "(3, 1)", false, &f32s(&[0.0; 3])));
    says(&["`x` has 3 items, but `y` has 2"]);
    write(&x, npy("<f4", "(2, 1)", false, &f32s(&[0.0; 2])));
    write(&y, npy("<f4", "(2,)", false, &f32s(&[0.5, 1.0])));
    says(&["no whole numbers", "loss for numbers"]);
    write(&y, npy("<i8", "(2,)", false, &i64s(&[0, -7])));
    says(&["below 0"]);
    fs::remove_file(&y).unwrap();
    says(&["no arrays `x` and `y`", "there are `x`"]);
    write(
        &folder.join("z.npy"),
        npy("<i8", "(2,)", false, &i64s(&[0, 1])),
    );
    refused(
        &folder.join("z.npy"),
        &SampleOptions::default(),
        &["y.npy beside it"],
    );
}

/// Regression test: only compressed data was checked, so a changed number was trained on.
#[test]
fn damage_within_a_stored_array_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.npz");
    let x = npy("<f4", "(6, 2)", false, &f32s(&[0.5; 12]));
    let y = npy("<i8", "(6,)", false, &i64s(&[0, 1, 2, 0, 1, 2]));
    npz(
        &path,
        &[("x", x.clone()), ("y", y)],
        CompressionMethod::Stored,
    );
    assert_eq!(open(&path).unwrap().train_len(), 6);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(x.len()).position(|own| own == x).unwrap();
    bytes[at + x.len() - 3] ^= 1;
    fs::write(&path, bytes).unwrap();
    let wanted = ["d.npz", "`x` is damaged", "checksum", "copied whole"];
    refused(&path, &SampleOptions::default(), &wanted);
    assert!(Array::npz(&path, "y").is_ok());
}
