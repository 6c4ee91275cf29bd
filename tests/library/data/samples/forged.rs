//! Randomly changed bytes: an error or other numbers, but no panic and no memory for missing data.

use std::fs;
use std::panic;
use std::path::Path;

use gpipe::data::{Random, SampleOptions, Samples};
use gpipe::tch::Tensor;
use zip::CompressionMethod;

use super::images::pictures;
use super::numpy::{f32s, i64s, npy, npz};

/// Changes of each file; `DATA_FUZZ=N` sets another number.
fn rounds() -> u64 {
    let asked = std::env::var("DATA_FUZZ").ok();
    asked.and_then(|own| own.parse().ok()).unwrap_or(150)
}

/// Changes some bytes of a file, truncates it or doubles it.
pub(in crate::data) fn changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let place = random.below(bytes.len() as u64) as usize;
        match random.below(6) {
            0 => bytes.truncate(place.max(1)),
            1 => bytes.insert(place, random.number() as u8),
            2 => bytes[place] ^= 1 << random.below(8),
            3 => bytes[place] = 0xff,
            4 => {
                let end = (place + 8).min(bytes.len());
                bytes[place..end].fill(0xff);
            }
            _ => bytes[place] = random.number() as u8,
        }
    }
    bytes
}

/// Opens and reads everything, and returns any error.
fn read(path: &Path, options: &SampleOptions) -> Result<(), String> {
    let samples = Samples::open(path, options).map_err(|error| error.to_string())?;
    for batch in samples
        .in_order(3)
        .load()
        .map_err(|error| error.to_string())?
    {
        let _ = batch.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Changes a file many times.
fn fuzz(file: &Path, opened: &Path, options: &SampleOptions) {
    let good = fs::read(file).unwrap();
    read(opened, options).unwrap();
    let mut refused = 0;
    for round in 0..rounds() {
        let bytes = changed(&good, &mut Random::new(round));
        fs::write(file, &bytes).unwrap();
        let result = panic::catch_unwind(|| read(opened, options));
        let result = result.unwrap_or_else(|_| panic!("{} in round {round}", file.display()));
        if let Err(error) = result {
            refused += 1;
            assert!(
                !error.contains("panicked"),
                "{}, round {round}: {error}",
                file.display()
            );
        }
    }
    fs::write(file, &good).unwrap();
    assert!(refused > 0, "{}", file.display());
}

#[test]
fn arrays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let options = SampleOptions::default();
    let x = npy("<f4", "(3, 2)", false, &f32s(&[0.5; 6]));
    let y = npy("<i8", "(3,)", false, &i64s(&[0, 1, 2]));
    let path = folder.join("d.npz");
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        npz(&path, &[("x", x.clone()), ("y", y.clone())], method);
        fuzz(&path, &path, &options);
    }
    let own = folder.join("arrays");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("x.npy"), x).unwrap();
    fs::write(own.join("y.npy"), y).unwrap();
    fuzz(&own.join("x.npy"), &own, &options);
    fuzz(&own.join("y.npy"), &own, &options);
    let path = folder.join("d.safetensors");
    let (x, y) = (
        Tensor::from_slice(&[0.5_f32, 1.0]),
        Tensor::from_slice(&[0_i64, 1]),
    );
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], &path).unwrap();
    fuzz(&path, &path, &options);
}

/// Headers with false sizes: refused before anything is allocated.
#[test]
fn sizes_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.npz");
    let y = npy("<i8", "(1,)", false, &i64s(&[0]));
    for shape in [
        "(4611686018427387904, 4)",
        "(99999999999,)",
        "(0, 99999999999999999999)",
        "()",
    ] {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let x = npy("<f4", shape, false, &f32s(&[0.5]));
            npz(&path, &[("x", x), ("y", y.clone())], method);
            let error = Samples::open(&path, &SampleOptions::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains("d.npz"), "{error}");
        }
    }
    // An entry of a few bytes that declares 4 GiB.
    let x = npy("<f4", "(1,)", false, &f32s(&[0.5]));
    npz(&path, &[("x", x), ("y", y)], CompressionMethod::Deflated);
    let mut bytes = fs::read(&path).unwrap();
    let directory = bytes
        .windows(4)
        .position(|own| own == b"PK\x01\x02")
        .unwrap();
    bytes[directory + 24..directory + 28].copy_from_slice(&0xf000_0000_u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = Samples::open(&path, &SampleOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot become 4026531840"), "{error}");
}

#[test]
fn tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "a,b,\"c,d\"\n1,2.5,x\n3,4e1,\"y\"\"z\"\n-1,0,x\n").unwrap();
    fuzz(&path, &path, &SampleOptions::default());
    fs::write(&path, "a,b\n1,2.5\n3,4e1\n-1,0\n").unwrap();
    fuzz(&path, &path, &SampleOptions::default().numbers());
}

#[test]
fn images() {
    let folder = tempfile::tempdir().unwrap();
    pictures(folder.path());
    let options = SampleOptions::default().image(3, 4, 4);
    for name in ["dark/0.png", "light/1.JPG"] {
        fuzz(&folder.path().join(name), folder.path(), &options);
    }
}
