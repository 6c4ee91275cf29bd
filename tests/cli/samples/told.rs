//! Errors in labels, arrays and tables name the place and a remedy.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};
use zip::write::FileOptions;

use super::fails;

const TRAIN: &str = "train --model mlp --hidden 8 --batch 8 --steps 2 --out run --data";

/// Arrays with labels 0 to 2, except for sample 9.
fn arrays(folder: &Path, label: i64) {
    let x = Tensor::arange(160, (Kind::Float, Device::Cpu))
        .sin()
        .view([40, 4]);
    let y = Tensor::arange(40, (Kind::Int64, Device::Cpu)).remainder(3);
    let _ = y.get(9).fill_(label);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
}

/// Regression test: the message did not say where the label is.
#[test]
fn a_label_that_is_no_class_is_told_with_its_sample_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    arrays(folder, 7);
    let told = [
        "error: --data: d.safetensors, sample 9: label 7 is out of the range 0 to 2",
        "a model of 8 classes (--outputs or --classes)",
        "--loss cross-entropy --ignore-index 7",
    ];
    fails(
        folder,
        &format!("{TRAIN} d.safetensors --outputs 3"),
        2,
        &told,
    );
    arrays(folder, -1);
    let told = ["error: --data: d.safetensors, sample 9: label -1 is below 0"];
    fails(folder, &format!("{TRAIN} d.safetensors"), 2, &told);
    fails(
        folder,
        &format!("{TRAIN} d.safetensors --outputs 3"),
        2,
        &told,
    );
    assert!(!folder.join("run").exists());
}

/// Writes an archive of arrays that consist of a header only, declaring numbers of this kind.
fn archive(path: &Path, arrays: &[(&str, &str)]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, descr) in arrays {
        let plain = FileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(format!("{name}.npy"), plain).unwrap();
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (0,), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// Regression test: for an archive of many arrays only a byte was named.
#[test]
fn an_array_of_an_archive_is_told_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    archive(&folder.join("d.npz"), &[("x", "<f4"), ("y", "|O")]);
    let told = ["the array `y`: its numbers are `|O`: objects, not numbers"];
    fails(folder, &format!("{TRAIN} d.npz"), 2, &told);
    archive(&folder.join("d.npz"), &[("x", "<c8"), ("y", "<i8")]);
    let told = ["the array `x`: its numbers are `<c8`: "];
    fails(folder, &format!("{TRAIN} d.npz"), 2, &told);
}

/// Regression test: `1e39 is not finite` was said of a finite number.
#[test]
fn a_number_that_single_precision_has_not_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("t.csv"), "a,kind\n1,0\n1e39,1\n").unwrap();
    let told = [
        "t.csv, line 3: column `a`: 1e39 is too large for single precision (at most 3.4e38)",
        "divide the column by a power of ten",
    ];
    fails(folder, &format!("{TRAIN} t.csv"), 2, &told);
    fs::write(folder.join("t.csv"), "a,kind\n1,0\n-inf,1\n").unwrap();
    let told = ["t.csv, line 3: column `a`: `-inf` is infinite: mend the cell"];
    fails(folder, &format!("{TRAIN} t.csv"), 2, &told);
}
