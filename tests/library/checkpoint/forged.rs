//! Forged files: with valid checksums, and wrong in all other ways.

use std::fs;
use std::path::{Path, PathBuf};

use gpipe::checkpoint::{Checkpoint, CheckpointError};
use serde_json::{Value, json};

use super::run::{Run, small};
use crate::support::assert_same_bits;

struct Forged {
    _folder: tempfile::TempDir,
    path: PathBuf,
    manifest: Value,
}

impl Forged {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        small().save(folder.path(), 1);
        // The name gives no step.
        let path = folder.path().join("forged");
        fs::rename(folder.path().join("step-00000001"), &path).unwrap();
        let text = fs::read(path.join("manifest.json")).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        manifest.as_object_mut().unwrap().remove("blake3").unwrap();
        Self {
            _folder: folder,
            path,
            manifest,
        }
    }

    /// Opens the checkpoint with a manifest of these fields and a valid seal.
    fn open(&self, manifest: &Value) -> Result<Checkpoint, CheckpointError> {
        let text = serde_json::to_string_pretty(manifest).unwrap();
        let text = text.strip_suffix("\n}").unwrap_or(&text);
        self.open_text(text)
    }

    fn open_text(&self, text: &str) -> Result<Checkpoint, CheckpointError> {
        let sum = blake3::hash(text.as_bytes()).to_hex();
        let sealed = format!("{text},\n  \"blake3\": \"{sum}\"\n}}\n");
        fs::write(self.path.join("manifest.json"), sealed).unwrap();
        Checkpoint::open(&self.path)
    }

    /// Inserts a forged first shard, with its actual size and checksum.
    fn open_shard(&self, bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
        fs::write(self.path.join("stage-0.safetensors"), bytes).unwrap();
        let mut manifest = self.manifest.clone();
        let entry = &mut manifest["shards"][0];
        entry["bytes"] = json!(bytes.len());
        entry["blake3"] = json!(blake3::hash(bytes).to_hex().as_str());
        self.open(&manifest)
    }

    fn shard(&self) -> Vec<u8> {
        fs::read(self.path.join("stage-0.safetensors")).unwrap()
    }
}

#[track_caller]
fn assert_says(result: Result<Checkpoint, CheckpointError>, expected: &str) {
    let text = result.expect_err(expected).to_string();
    assert!(text.contains(expected), "{expected}: {text}");
}

#[test]
fn the_manifest_as_the_book_tells_how_to_seal_it_is_believed() {
    let forged = Forged::new();
    forged.open(&forged.manifest).unwrap();
}

#[test]
fn files_outside_of_the_folder_are_refused_by_their_name() {
    let forged = Forged::new();
    fs::copy(
        forged.path.join("stage-0.safetensors"),
        forged.path.parent().unwrap().join("x.safetensors"),
    )
    .unwrap();
    let absolute = forged.path.join("stage-0.safetensors");
    for name in [
        "../x.safetensors",
        "./stage-0.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "..",
        "",
        ".safetensors",
        "x\0.safetensors",
        "manifest.json",
        &"x".repeat(500),
        absolute.to_str().unwrap(),
    ] {
        let mut manifest = forged.manifest.clone();
        manifest["shards"][0]["file"] = json!(name);
        assert_says(forged.open(&manifest), "not one of its own folder");
    }
    let mut manifest = forged.manifest.clone();
    manifest["shards"][1] = manifest["shards"][0].clone();
    assert_says(forged.open(&manifest), "`stage-0.safetensors` twice");
}

#[test]
fn versions_and_fields_that_are_not_known_are_told() {
    let forged = Forged::new();
    let with = |field: &str, value: Value| {
        let mut manifest = forged.manifest.clone();
        manifest[field] = value;
        forged.open(&manifest)
    };
    let error = with("version", json!(2)).unwrap_err();
    assert!(
        error.is_wrong_use() && !error.is_damage(),
        "nothing is broken"
    );
    assert!(
        error
            .to_string()
            .contains("version 2, but this program reads version 1"),
        "{error}"
    );
    assert_says(with("version", json!(-1)), "not a manifest");
    assert_says(with("format", json!("other")), "its format is `other`");
    assert_says(with("colour", json!("blue")), "unknown field `colour`");
    assert_says(with("step", json!(1.5)), "not a manifest");
    assert_says(with("step", json!("1")), "not a manifest");
    assert_says(with("shards", json!([{}])), "missing field `file`");
    assert_says(
        with("random", json!({"seed": 1, "steps": 2, "more": 3})),
        "`more`",
    );
    for field in [
        "format", "version", "step", "random", "libtorch", "config", "parts", "shards",
    ] {
        let mut manifest = forged.manifest.clone();
        manifest.as_object_mut().unwrap().remove(field);
        assert_says(forged.open(&manifest), &format!("missing field `{field}`"));
    }
}

#[test]
fn texts_that_are_no_manifest_are_refused() {
    let forged = Forged::new();
    for text in [
        "",
        "{",
        "null",
        "[1",
        "{\"a\": 1}, {\"b\": 2",
        "\u{0}",
        "{\"step\": 1, \"step\": 2",
    ] {
        assert_says(forged.open_text(text), "not a manifest");
    }
    let deep = format!("{{\"parts\": {}", "[".repeat(200_000));
    assert_says(forged.open_text(&deep), "not a manifest");
    fs::write(forged.path.join("manifest.json"), "{}").unwrap();
    assert_says(
        Checkpoint::open(&forged.path),
        "does not end with a checksum",
    );
}

/// Regression test: of two parts with one name the last silently counted.
#[test]
fn a_part_that_is_given_twice_is_an_error() {
    let forged = Forged::new();
    let mut manifest = forged.manifest.clone();
    manifest["parts"] = json!({"data": 1});
    let text = serde_json::to_string_pretty(&manifest).unwrap();
    let text = text.strip_suffix("\n}").unwrap();
    forged.open_text(text).unwrap();
    let twice = text.replace("\"data\": 1", "\"data\": 1, \"data\": 2");
    assert_ne!(twice, text);
    assert_says(forged.open_text(&twice), "the part `data` is given twice");
}

/// Regression test: one more step overflowed.
#[test]
fn numbers_of_steps_that_no_run_does_are_refused() {
    let forged = Forged::new();
    for steps in [u64::MAX, 1 << 53] {
        let mut manifest = forged.manifest.clone();
        manifest["random"]["steps"] = json!(steps);
        assert_says(forged.open(&manifest), "steps were done, which no run has");
        let mut manifest = forged.manifest.clone();
        manifest["step"] = json!(steps);
        assert_says(forged.open(&manifest), "steps were done, which no run has");
    }
}

/// Regression test: each shard started a thread, until none was left, which panicked.
#[test]
fn any_number_of_shards_is_looked_for() {
    let forged = Forged::new();
    let mut manifest = forged.manifest.clone();
    let entry = |number: usize| json!({"file": format!("{number}.safetensors"), "bytes": 8, "blake3": "0", "tensors": 1});
    manifest["shards"] = (0..20_000).map(entry).collect();
    assert_says(forged.open(&manifest), "the file is missing");
}

#[test]
fn sizes_that_are_not_those_of_the_files_are_refused_before_anything_is_read() {
    let forged = Forged::new();
    for bytes in [json!(0), json!(7), json!(u64::MAX), json!(1_u64 << 62)] {
        let mut manifest = forged.manifest.clone();
        manifest["shards"][0]["bytes"] = bytes;
        assert_says(forged.open(&manifest), "but the manifest says");
    }
    for count in [json!(0), json!(u64::MAX)] {
        let mut manifest = forged.manifest.clone();
        manifest["shards"][1]["tensors"] = count;
        assert_says(forged.open(&manifest), "its header has 8 tensors");
    }
}

#[test]
fn a_folder_with_the_name_of_another_step_is_refused() {
    let forged = Forged::new();
    forged.open(&forged.manifest).unwrap();
    let renamed = forged.path.with_file_name("step-00000002");
    fs::rename(&forged.path, &renamed).unwrap();
    assert_says(Checkpoint::open(renamed), "named after step 2");
}

/// A shard with this header, followed by `room` bytes.
fn shard(header: &str, room: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; room]].concat()
}

#[test]
fn shards_that_break_their_formats_rules_are_refused() {
    let forged = Forged::new();
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(
            "{{\"parameters/a.weight\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}"
        )
    };
    assert_says(forged.open_shard(b""), "no header");
    assert_says(forged.open_shard(b"1234567"), "no header");
    assert_says(forged.open_shard(&[0; 16]), "no header");
    assert_says(forged.open_shard(&[255; 64]), "no header");
    assert_says(forged.open_shard(&(1_u64 << 40).to_le_bytes()), "no header");
    for (header, room) in [
        ("[]".to_owned(), 0),
        ("{".to_owned(), 0),
        ("\u{fffd}".to_owned(), 0),
        (one("F32", "[2]", "[0,4]"), 8),
        (one("F32", "[2]", "[8,0]"), 8),
        (one("F32", "[2]", "[4,12]"), 12),
        (one("F32", "[2]", "[0,8]"), 9),
        (one("F32", "[-2]", "[0,8]"), 8),
        (one("F32", "[9223372036854775807,9]", "[0,8]"), 8),
        (one("F32", "[18446744073709551615]", "[0,8]"), 8),
        (one("F32", "[4611686018427387904,4]", "[0,0]"), 0),
        (one("F4", "[2]", "[0,1]"), 1),
        (one("X9", "[2]", "[0,8]"), 8),
        (one("U64", "[1]", "[0,8]"), 8),
        (one("F32", "[2]", "[0,8]").replace("parameters/", ""), 8),
    ] {
        let error = forged.open_shard(&shard(&header, room)).expect_err(&header);
        assert!(
            matches!(error, CheckpointError::Foreign { .. }),
            "{header}: {error}"
        );
    }
}

/// Opens the bytes, and restores them if they open; an error leaves the run unchanged.
fn restored(forged: &Forged, bytes: &[u8], run: &mut Run, what: &str) -> bool {
    let before = run.numbers();
    let opened = forged.open_shard(bytes);
    let done = opened.and_then(|found| {
        found.restore(&mut run.pipe, &mut run.optimizer)?;
        found.weights()
    });
    if done.is_ok() {
        return true;
    }
    assert_same_bits(&run.numbers(), &before, what);
    false
}

#[test]
fn a_header_with_any_byte_changed_is_refused_or_harmless_even_under_a_right_checksum() {
    let forged = Forged::new();
    let good = forged.shard();
    let end = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut run = small();
    let mut bytes = good.clone();
    let mut harmless = 0;
    for place in 0..end {
        let flip = [0x01, 0x04, 0x20, 0xff][place % 4];
        bytes[place] ^= flip;
        let what = format!("byte {place} ^ {flip}");
        harmless += usize::from(restored(&forged, &bytes, &mut run, &what));
        bytes[place] = good[place];
    }
    // Padding, the value of the field for other programs, parts of fixed form.
    assert!(harmless < end / 4, "{harmless} of {end} went through");
    assert!(restored(&forged, &good, &mut run, "as it was"));
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let forged = Forged::new();
    let bytes = fs::read(forged.path.join("stage-1.safetensors")).unwrap();
    assert_says(forged.open_shard(&bytes), "is in another shard as well");
}

#[test]
fn a_manifest_too_large_to_be_one_is_not_read() {
    let forged = Forged::new();
    let path: &Path = &forged.path.join("manifest.json");
    fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
    assert_says(
        Checkpoint::open(&forged.path),
        "a manifest is a file of at most",
    );
}
