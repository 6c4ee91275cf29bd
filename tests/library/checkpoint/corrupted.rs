//! Every changed byte is detected, and none causes a panic.

use std::fs;
use std::path::{Path, PathBuf};

use gpipe::checkpoint::{Checkpoint, CheckpointError};

use super::run::small;

fn saved() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    small().save(folder.path(), 1);
    let path = folder.path().join("step-00000001");
    Checkpoint::open(&path).unwrap();
    (folder, path)
}

/// Opens the checkpoint with `bytes` in place of a file; the error must name the file.
#[track_caller]
fn refused(checkpoint: &Path, file: &str, bytes: &[u8], what: &str) -> CheckpointError {
    let path = checkpoint.join(file);
    fs::write(&path, bytes).unwrap();
    let error = Checkpoint::open(checkpoint).expect_err(what);
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{what}: {text}");
    assert!(error.is_damage(), "{what}: {text}");
    error
}

/// Changes of one byte: the case of a letter, one bit, all bits.
const FLIPS: [u8; 3] = [0x20, 0x01, 0xff];

#[test]
fn every_byte_of_the_manifest() {
    let (_folder, path) = saved();
    let file = path.join("manifest.json");
    let good = fs::read(&file).unwrap();
    let mut bytes = good.clone();
    for place in 0..good.len() {
        // Each bit, and all of them.
        for flip in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            bytes[place] ^= flip;
            refused(
                &path,
                "manifest.json",
                &bytes,
                &format!("byte {place} ^ {flip}"),
            );
            bytes[place] = good[place];
        }
        refused(
            &path,
            "manifest.json",
            &good[..place],
            &format!("{place} bytes"),
        );
    }
    refused(
        &path,
        "manifest.json",
        &[&good[..], b"\n"].concat(),
        "a byte more",
    );
    fs::write(&file, &good).unwrap();
    Checkpoint::open(&path).unwrap();
}

#[test]
fn two_thousand_bytes_of_the_shards() {
    let (_folder, path) = saved();
    let mut tried = 0;
    for file in ["stage-0.safetensors", "stage-1.safetensors"] {
        let good = fs::read(path.join(file)).unwrap();
        let mut bytes = good.clone();
        let sampled = (0..good.len()).step_by((good.len() / 1000).max(1));
        for (number, place) in sampled.enumerate() {
            let what = format!("{file}, byte {place}");
            bytes[place] ^= FLIPS[number % FLIPS.len()];
            let error = refused(&path, file, &bytes, &what);
            assert!(
                matches!(error, CheckpointError::Checksum { .. }),
                "{what}: {error}"
            );
            bytes[place] = good[place];
            tried += 1;
        }
        for length in (0..good.len()).step_by(good.len() / 50) {
            let error = refused(&path, file, &good[..length], "cut off");
            assert!(matches!(error, CheckpointError::Size { .. }), "{error}");
        }
        fs::write(path.join(file), &good).unwrap();
    }
    assert!(tried >= 2000, "only {tried} bytes were tried");
    Checkpoint::open(&path).unwrap();
}

#[test]
fn missing_and_foreign_files_are_named() {
    let (_folder, path) = saved();
    for file in [
        "manifest.json",
        "stage-0.safetensors",
        "stage-1.safetensors",
    ] {
        let own = path.join(file);
        let good = fs::read(&own).unwrap();
        fs::remove_file(&own).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::Missing { path } if *path == own),
            "{error}"
        );
        fs::create_dir(&own).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::Foreign { path, .. } if *path == own),
            "{error}"
        );
        fs::remove_dir(&own).unwrap();
        fs::write(&own, good).unwrap();
    }
    // A shard of another checkpoint, of the same size.
    let mut other = small();
    let elsewhere = tempfile::tempdir().unwrap();
    let _ = gpipe::tch::no_grad(|| {
        other.pipe.parameters().unwrap()[0]
            .1
            .shallow_clone()
            .fill_(3.0)
    });
    other.save(elsewhere.path(), 1);
    let foreign = elsewhere.path().join("step-00000001/stage-0.safetensors");
    let bytes = fs::read(foreign).unwrap();
    let error = refused(
        &path,
        "stage-0.safetensors",
        &bytes,
        "another checkpoint's shard",
    );
    assert!(matches!(error, CheckpointError::Checksum { .. }), "{error}");
}

#[test]
fn a_file_that_is_changed_after_it_was_verified_is_not_believed() {
    let (_folder, path) = saved();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let shard = path.join("stage-1.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let mut run = small();
    let error = checkpoint
        .restore(&mut run.pipe, &mut run.optimizer)
        .unwrap_err();
    assert!(matches!(error, CheckpointError::Checksum { .. }), "{error}");
    checkpoint.weights().unwrap_err();
}
