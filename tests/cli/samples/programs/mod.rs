//! Programs that PyTorch exported, on data of any form.

mod inputs;
mod targets;

use std::fs;
use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};

use super::{as_json, fails, printed};
use crate::run::{gpipe, losses};

/// A folder with programs of both fixture folders.
pub(super) fn folder(programs: &[&str]) -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folder = tempfile::tempdir().unwrap();
    for name in programs {
        let file = format!("{name}.pt2");
        let mut places = ["programs", "exported"]
            .iter()
            .map(|own| root.join(own).join(&file));
        let from = places.find(|own| own.exists()).unwrap();
        fs::copy(from, folder.path().join(file)).unwrap();
    }
    folder
}

pub(super) fn arrays(folder: &Path, name: &str, arrays: &[(&str, &Tensor)]) {
    Tensor::write_safetensors(arrays, folder.join(name)).unwrap();
}

pub(super) fn floats(shape: &[i64]) -> Tensor {
    let count = shape.iter().product::<i64>();
    let all = Tensor::arange(count, (Kind::Float, Device::Cpu));
    (all * 0.7).sin().view(shape)
}

pub(super) fn whole(shape: &[i64], below: i64) -> Tensor {
    let count = shape.iter().product::<i64>();
    let all = Tensor::arange(count, (Kind::Int64, Device::Cpu));
    all.remainder(below).view(shape)
}

/// Lines of a table.
fn rows(count: usize, row: impl Fn(usize) -> String) -> String {
    let rows: Vec<String> = (0..count).map(row).collect();
    rows.concat()
}

/// Standard error of a run that succeeds.
fn said(folder: &Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args}: {errors}");
    errors
}

/// Changes a file's program to take two samples or more, as with `Dim.DYNAMIC` and `Dim.AUTO`.
fn of_two_or_more(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|own| own == what);
    let sum = |bytes: &[u8]| crc32fast::hash(bytes).to_le_bytes();
    let at = find(&bytes, b"\"min_val\": 1,").unwrap();
    let number = |from: usize, count: usize| {
        let own = bytes[from..from + count].iter().rev();
        own.fold(0, |sum, byte| (sum << 8) | usize::from(*byte))
    };
    // Finds the entry by the list at the end of the archive.
    let header = bytes[..at].windows(4).rposition(|own| own == b"PK\x03\x04");
    let header = header.unwrap();
    let list = bytes.windows(4).enumerate();
    let mut list = list
        .filter(|(_, own)| *own == b"PK\x01\x02")
        .map(|(at, _)| at);
    let listed = list.find(|own| number(own + 42, 4) == header).unwrap();
    let begin = header + 30 + number(header + 26, 2) + number(header + 28, 2);
    let end = begin + number(listed + 24, 4);
    let old = sum(&bytes[begin..end]);
    assert_eq!(old, bytes[listed + 16..listed + 20]);
    bytes[at + b"\"min_val\": ".len()] = b'2';
    let new = sum(&bytes[begin..end]);
    while let Some(place) = find(&bytes, &old) {
        bytes[place..place + 4].copy_from_slice(&new);
    }
    fs::write(file, bytes).unwrap();
}

/// Regression test: such a program was reported as exported without a dynamic batch, `eval` refused valid
/// batches, and the range ended at 18446744073709551615.
#[test]
fn a_program_of_two_samples_or_more_is_told_so_and_judged() {
    let folder = folder(&["mlp"]);
    let folder = folder.path();
    of_two_or_more(&folder.join("mlp.pt2"));
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[30, 8])), ("y", &floats(&[30, 3]))],
    );
    let train = "train --model mlp.pt2 --loss mse --data d.safetensors --batch 16 --micro 4 --steps 2 \
                 --held-out 0.2 --checkpoint-every 2 --threads-per-stage 1 --out run";
    let notes = said(folder, train);
    let wanted = "it was exported for 2 samples or more, as Dim.DYNAMIC and Dim.AUTO make it: export it \
                  with Dim(\"batch\", min=1)";
    assert!(notes.contains(wanted), "{notes}");
    let judged = as_json(folder, "eval --run run --json");
    assert_eq!(judged["count"], 6, "{judged}");
    let range = ["was exported for micro-batches of 2 to 4096 samples"];
    fails(folder, "eval --run run --batch 1", 2, &range);
}

/// Regression test: the incomplete last batch was passed on, and `eval` ended with libtorch's error.
#[test]
fn a_program_of_one_batch_size_is_judged_on_whole_batches() {
    let folder = folder(&["fixed"]);
    let folder = folder.path();
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[30, 8])), ("y", &floats(&[30, 3]))],
    );
    let train = "train --model fixed.pt2 --loss mse --data d.safetensors --batch 4 --micro 2 --steps 3 \
                 --checkpoint-every 3 --threads-per-stage 1";
    let notes = said(folder, &format!("{train} --held-out 0.3 --out run"));
    assert!(
        notes.contains("1 of 9 held-out samples is not measured"),
        "{notes}"
    );
    let judged = as_json(folder, "eval --run run --json");
    assert_eq!(
        (&judged["count"], &judged["left_out"]),
        (&8.into(), &1.into())
    );
    let told = printed(folder, "eval --run run");
    assert!(
        told.contains("left out    1 sample, which fills no batch"),
        "{told}"
    );
    let own = as_json(
        folder,
        &format!("{train} --held-out 0.3 --out again --json --quiet"),
    );
    assert_eq!(own["held_out_loss"], judged["loss"]);
    let all = as_json(folder, "eval --run run --json --data d.safetensors");
    assert_eq!((&all["count"], &all["left_out"]), (&28.into(), &2.into()));
    let all = as_json(
        folder,
        "eval --run run --json --data d.safetensors --batch 2",
    );
    assert_eq!((&all["count"], &all["left_out"]), (&30.into(), &0.into()));
    fails(
        folder,
        "eval --run run --batch 3",
        2,
        &["--batch 3", "micro-batches of 2 samples"],
    );
    arrays(
        folder,
        "one.safetensors",
        &[("x", &floats(&[1, 8])), ("y", &floats(&[1, 3]))],
    );
    let few = [
        "one.safetensors",
        "a batch of 2 is more than its 1 sample",
        "--batch",
    ];
    fails(folder, "eval --run run --data one.safetensors", 2, &few);
    // Nothing is measured, as the loss over no samples is not a number.
    let notes = said(folder, &format!("{train} --held-out 0.1 --out none"));
    assert!(
        notes.contains("the held-out loss is not measured: 3 samples"),
        "{notes}"
    );
}

/// Regression test: a micro-batch of one sample ended training and profiling with libtorch's error.
#[test]
fn batch_norm_has_micro_batches_of_two() {
    let folder = folder(&["normed"]);
    let folder = folder.path();
    let profile =
        "profile --model normed.pt2 --loss cross-entropy --batch 4 --quick --json --plan plan.json";
    let told = as_json(folder, profile);
    assert!(
        told["plan"]["micro_batch_size"].as_u64().unwrap() >= 2,
        "{told}"
    );
    let train = "train --model normed.pt2 --loss cross-entropy --batch 4 --steps 1 --quiet";
    printed(folder, &format!("{train} --plan plan.json"));
    let wrong = [
        "micro-batches of 1 sample",
        "batch norm",
        "--batch 8",
        "--micro 2",
    ];
    fails(folder, &format!("{train} --micro 4"), 2, &wrong);
    fails(
        folder,
        &profile.replace("--quick", "--quick --micro 4"),
        2,
        &wrong,
    );
}

/// Regression test: the hint was one for `gpt` and `llama`.
#[test]
fn a_run_on_other_data_is_told_how_a_new_one_begins() {
    let folder = folder(&["mlp"]);
    let folder = folder.path();
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[40, 8])), ("y", &whole(&[40], 3))],
    );
    let flags = "--batch 8 --steps 2 --quiet --checkpoint-every 2 --data d.safetensors";
    printed(
        folder,
        &format!("train --model mlp.pt2 --loss cross-entropy --out run {flags}"),
    );
    printed(
        folder,
        &format!("train --model mlp --hidden 4 --out own {flags}"),
    );
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[41, 8])), ("y", &whole(&[41], 3))],
    );
    let output = gpipe(folder, "train --resume run --steps 4 --quiet");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("--weights") && !errors.contains("llama"),
        "{errors}"
    );
    let output = gpipe(folder, "train --resume own --steps 4 --quiet");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("go on with the data") && !errors.contains("--weights"),
        "{errors}"
    );
}

#[test]
fn a_program_begins_with_the_weights_of_a_state_dict() {
    let folder = folder(&["judged", "mlp"]);
    let folder = folder.path();
    let train =
        "train --model judged.pt2 --batch 8 --micro 2 --quiet --threads-per-stage 1 --warmup 1";
    printed(
        folder,
        &format!("{train} --steps 3 --checkpoint-every 3 --out first"),
    );
    printed(folder, "export --run first -o weights.safetensors");
    printed(
        folder,
        &format!("{train} --steps 1 --out second --weights weights.safetensors"),
    );
    printed(folder, &format!("{train} --steps 1 --out fresh"));
    assert_ne!(losses(folder, "second"), losses(folder, "fresh"));
    // Without an update in between the weights are the same.
    let sgd = format!("{train} --optimizer sgd --lr 1e-30 --steps 1 --checkpoint-every 1");
    printed(
        folder,
        &format!("{sgd} --out same --weights weights.safetensors"),
    );
    printed(folder, "export --run same -o same.safetensors");
    let read = |name: &str| {
        let mut all = Tensor::read_safetensors(folder.join(name)).unwrap();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    };
    let (before, after) = (read("weights.safetensors"), read("same.safetensors"));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        // Batch statistics change even without a learning rate.
        assert!(name.starts_with("norm.") || before.equal(after), "{name}");
    }
    printed(folder, "train --resume second --steps 2 --quiet");

    let wrong = |all: &[(String, Tensor)], wanted: &[&str]| {
        let all: Vec<_> = all.iter().map(|(name, own)| (name.as_str(), own)).collect();
        Tensor::write_safetensors(&all, folder.join("other.safetensors")).unwrap();
        let train = format!("{train} --steps 1 --weights other.safetensors");
        fails(
            folder,
            &train,
            2,
            &[&["--weights other.safetensors"], wanted].concat(),
        );
    };
    let mut other = read("weights.safetensors");
    other.retain(|(name, _)| name != "head.weight");
    wrong(&other, &["Missing are `head.weight`."]);
    let mut other = read("weights.safetensors");
    other.push(("module.x".to_owned(), floats(&[2])));
    wrong(&other, &["The model has no `module.x`."]);
    let mut other = read("weights.safetensors");
    for (name, own) in &mut other {
        if name == "third.weight" {
            *own = &*own + 1.0;
        }
    }
    wrong(&other, &["`second.weight`", "`third.weight`", "one tensor"]);
    for (name, own) in &mut other {
        if name == "head.bias" {
            *own = floats(&[4]);
        }
    }
    wrong(&other, &["`head.bias` has shape [4]", "[3]"]);
    fs::write(folder.join("other.safetensors"), "nothing").unwrap();
    let train = format!("{train} --steps 1 --weights other.safetensors");
    fails(
        folder,
        &train,
        2,
        &["other.safetensors", "no safetensors file"],
    );
}
