//! Large numbers: centred before rounding to single precision, and reported if nothing centres them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gpipe::data::{Normalise, SampleOptions, Samples};
use gpipe::tch::{Kind, Tensor};
use zip::CompressionMethod;

use super::numpy::i64s;
use super::{all, floats};
use crate::data::samples::{f32s, npy, npz};

fn distinct(numbers: &[f64]) -> usize {
    numbers
        .iter()
        .map(|own| own.to_bits())
        .collect::<BTreeSet<_>>()
        .len()
}

fn options() -> SampleOptions {
    SampleOptions::default().numbers().held_out(0.0)
}

/// 400 times, ten seconds apart, as text.
fn seconds(row: i64) -> i64 {
    1_700_000_000 + 10 * row
}

fn table(path: &Path, header: &str, row: impl Fn(i64) -> String) {
    let rows: String = (0..400).map(|own| row(own) + "\n").collect();
    fs::write(path, format!("{header}\n{rows}")).unwrap();
}

/// Regression test: of 400 Unix times 32 distinct ones were left.
#[test]
fn columns_of_a_table_are_centred_before_they_are_rounded() {
    let folder = tempfile::tempdir().unwrap();
    let [large, small] = ["large.csv", "small.csv"].map(|own| folder.path().join(own));
    table(&large, "t,y", |row| format!("{},1", seconds(row)));
    table(&small, "t,y", |row| format!("{},1", 10 * row));
    let [large, small] = [&large, &small].map(|path| {
        let samples = Samples::open(path, &options()).unwrap();
        assert!(!samples.notes().join(" ").contains("single precision"));
        floats(&all(&samples).0)
    });
    assert_eq!(distinct(&large), 400);
    let apart = large
        .iter()
        .zip(&small)
        .map(|(one, other)| (one - other).abs());
    assert!(apart.fold(0.0, f64::max) < 1e-6);
}

/// Regression test: times within a minute became equal, as days since 2000 were rounded to 84 seconds.
#[test]
fn times_are_centred_before_they_are_rounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    table(&path, "t,y", |row| {
        format!("2024-05-17T10:{:02}:{:02},1", row / 60, row % 60)
    });
    let (x, _) = all(&Samples::open(&path, &options()).unwrap());
    assert_eq!(distinct(&floats(&x.select(1, 0))), 400);
}

#[test]
fn arrays_are_centred_before_they_are_rounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.npz");
    let times: Vec<i64> = (0..400).map(seconds).collect();
    let doubles: Vec<u8> = times
        .iter()
        .flat_map(|own| (*own as f64).to_le_bytes())
        .collect();
    let y = npy("<f4", "(400,)", false, &f32s(&[1.0; 400]));
    for (descr, bytes) in [("<f8", doubles), ("<i8", i64s(&times))] {
        for shape in ["(400, 1)", "(400, 1, 1)", "(400, 1, 1, 1)"] {
            let x = npy(descr, shape, false, &bytes);
            npz(
                &path,
                &[("x", x), ("y", y.clone())],
                CompressionMethod::Stored,
            );
            let how = options().normalise(Normalise::Standard);
            let (x, _) = all(&Samples::open(&path, &how).unwrap());
            assert_eq!(
                (distinct(&floats(&x)), x.kind()),
                (400, Kind::Float),
                "{descr} {shape}"
            );
            let how = options().normalise("1700000000/100".parse().unwrap());
            let (x, _) = all(&Samples::open(&path, &how).unwrap());
            assert_eq!(distinct(&floats(&x)), 400, "{descr} {shape}");
        }
    }
}

/// Regression test: without centring, the loss was not reported.
#[test]
fn what_is_lost_where_nothing_is_centred_is_said_with_the_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    table(&path, "word,t,y", |row| {
        format!("{},{},{row}", ["a", "b"][row as usize % 2], seconds(row))
    });
    let notes = |path: &Path, options: SampleOptions| {
        Samples::open(path, &options).unwrap().notes().join("; ")
    };
    let said = notes(&path, options().normalise(Normalise::None));
    assert!(
        said.contains("`t` has 400 different values in 400 samples")
            && said.contains("leaves 32: scale the inputs with --normalise standard"),
        "{said}"
    );
    // A run's own settings apply to its data.
    let first = Samples::open(&path, &options().normalise(Normalise::None)).unwrap();
    assert!(!notes(&path, options().kept(&first.kept()).unwrap()).contains("single precision"));
    // Targets, which only tables scale.
    table(&path, "x,t", |row| format!("{},{}", row % 7, seconds(row)));
    let said = notes(&path, options());
    assert!(said.contains("`t` has 400 different values"), "{said}");
    assert!(!notes(&path, options().scale_targets()).contains("single precision"));
    // Arrays are scaled automatically only if they are bytes.
    let path = folder.path().join("d.safetensors");
    let x = Tensor::arange(800, (Kind::Double, gpipe::tch::Device::Cpu)).view([400, 2]);
    let large = &x + Tensor::from_slice(&[0.0, 5_817_000_000.0]);
    let y = Tensor::zeros([400], (Kind::Float, gpipe::tch::Device::Cpu));
    Tensor::write_safetensors(&[("x", &large), ("y", &y)], &path).unwrap();
    let said = notes(&path, options());
    assert!(
        said.contains("number 1 of the inputs (counted from 0)"),
        "{said}"
    );
    Tensor::write_safetensors(&[("x", &x), ("y", &large.select(1, 1).contiguous())], &path)
        .unwrap();
    let said = notes(&path, options());
    assert!(
        said.contains("number 0 of the targets") && !said.contains("inputs"),
        "{said}"
    );
}
