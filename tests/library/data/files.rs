//! Arrays of safetensors files.

use std::fs;

use gpipe::data::{Array, Dataset, Source};
use gpipe::tch::{Kind, Tensor};

use super::{numbers, says};

#[test]
fn pairs_of_arrays_come_as_batches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.safetensors");
    let x = Tensor::from_slice(&[0.5_f32, 1.0, 1.5, 2.0, 2.5, 3.0]).view([3, 2]);
    let y = Tensor::from_slice(&[7_i64, 8, 9]);
    Tensor::write_safetensors(&[("x", &x), ("y", &y), ("n", &Tensor::from(1.0))], &path).unwrap();
    let array = |name| Array::open(&path, name);
    assert_eq!(
        (array("x").unwrap().shape(), array("y").unwrap().kind()),
        (&[3, 2][..], Kind::Int64)
    );
    let pairs = Dataset::new(array("x").unwrap()).zip(Dataset::new(array("y").unwrap()));
    let mut loader = pairs.unwrap().batch(2).load().unwrap();
    let (first, labels) = loader.next().unwrap().unwrap();
    assert_eq!(first, x.narrow(0, 0, 2));
    assert_eq!(numbers(&labels), [7, 8]);

    says(
        &array("z").unwrap_err(),
        &["train.safetensors", "no tensor `z`", "`x`"],
    );
    says(&array("n").unwrap_err(), &["`n` is a single number"]);
    let place = array("y").unwrap().place(0, 1).to_string();
    assert!(place.ends_with("train.safetensors, sample 1"), "{place}");
}

#[test]
fn a_cut_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.safetensors");
    let x = Tensor::from_slice(&[0.5_f32, 1.0]);
    Tensor::write_safetensors(&[("x", &x)], &path).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        says(
            &Array::open(&path, "x").unwrap_err(),
            &["train.safetensors", "no whole safetensors"],
        );
    }
}
