//! Arrays, IDX files and TFRecords by `--data`.

use std::fs;
use std::path::Path;

use gpipe::data::{Example, TfRecordWriter};
use gpipe::tch::{Device, Kind, Tensor};

use super::{as_json, config, fails, trained};
use crate::run::{gpipe, metrics, printed, succeeded};

fn xy(count: i64) -> (Tensor, Tensor) {
    let x = Tensor::arange(count * 4, (Kind::Float, Device::Cpu)).sin();
    let y = Tensor::arange(count, (Kind::Int64, Device::Cpu)).remainder(3);
    (x.view([count, 2, 2]), y)
}

#[test]
fn arrays_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = xy(40);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    let judged = trained(
        folder,
        "--model mlp --hidden 8 --depth 2 --data d.safetensors",
    );
    assert_eq!(judged["count"], 4);
    let model = &config(folder, "whole")["model"];
    assert_eq!(model["inputs"].as_integer(), Some(4));
    assert_eq!(model["outputs"].as_integer(), Some(3));
}

#[test]
fn tokens_in_arrays_are_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let x = Tensor::arange(40 * 6, (Kind::Int64, Device::Cpu))
        .remainder(5)
        .view([40, 6]);
    let y = x.roll(-1, 1);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    trained(
        folder,
        "--model lstm --layers 2 --hidden 8 --context 6 --data d.safetensors",
    );
    assert_eq!(
        config(folder, "whole")["model"]["vocab"].as_integer(),
        Some(5)
    );
}

#[test]
fn records_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("data")).unwrap();
    let mut shard = TfRecordWriter::create(&folder.join("data/a.tfrecord")).unwrap();
    for number in 0..40 {
        let example = Example::default().with_floats("x", [number as f32, 1.0]);
        shard
            .write(&example.with_ints("y", [number % 4]).encode())
            .unwrap();
    }
    shard.finish().unwrap();
    trained(
        folder,
        "--model mlp --hidden 8 --depth 2 --normalise standard --data data",
    );
    assert_eq!(
        config(folder, "whole")["model"]["outputs"].as_integer(),
        Some(4)
    );
}

#[test]
fn idx_files_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/fashion-mnist-small");
    // Without --eval-every, six steps evaluate at most six of the held-out batches, and eval all.
    let flags = "--model mlp --hidden 8 --depth 2 --eval-every 6 --data";
    let judged = trained(folder.path(), &format!("{flags} {}", data.display()));
    assert!(judged["accuracy"].is_number());
}

#[test]
fn what_is_none_of_them_is_told_what_could_be() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("empty")).unwrap();
    let train = |data: &str| format!("train --model mlp --out run --data {data}");
    fails(
        folder,
        &train("empty"),
        2,
        &["empty", "x.npy", "folder of images", "TFRecords"],
    );
    fs::write(folder.join("text.txt"), "Call me Ishmael. ".repeat(100)).unwrap();
    fails(
        folder,
        &train("text.txt"),
        2,
        &["a text is for models that give a token"],
    );
}

/// Regression test: the error came in the middle of a run, or never if the data defines the number of
/// classes.
#[test]
fn labels_that_begin_at_1_are_told_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = xy(40);
    let y = y + 1;
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    let train = "train --model mlp --hidden 8 --batch 8 --steps 2 --data d.safetensors --out run";
    fails(
        folder,
        &format!("{train} --outputs 3"),
        2,
        &[
            "error: --data: d.safetensors, sample 2: label 3 is out of the range 0 to 2",
            "subtract 1 where yours begin at 1",
        ],
    );
    assert!(!folder.join("run").exists());
    let output = gpipe(folder, train);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("labels begin at 1"), "{errors}");
}

/// Regression test: labels 0 and 7 silently made a model of eight classes.
#[test]
fn classes_without_samples_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = xy(40);
    let y = y.remainder(2) * 7;
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    let train = "train --model mlp --hidden 8 --batch 8 --steps 1 --data d.safetensors --out run";
    let output = gpipe(folder, train);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let note =
        "6 of the 8 classes have no sample: classes are counted from 0 to the largest label, 7";
    assert!(errors.contains(note), "{errors}");
}

/// Regression test: the messages were about arrays without `x` and `y`, or invalid UTF-8.
#[test]
fn models_and_weights_are_told_from_data() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = xy(40);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    Tensor::write_safetensors(&[("in.weight", &x)], folder.join("w.safetensors")).unwrap();
    // A zip archive, as torch.save writes it, and the older format.
    fs::write(folder.join("w.pt"), b"PK\x03\x04").unwrap();
    fs::write(folder.join("w.PTH"), b"\x80\x02").unwrap();
    fs::write(folder.join("m.pt2"), b"PK\x03\x04").unwrap();
    for other in [
        "m.onnx",
        "rows.json",
        "one.JPG",
        "rows.jsonl",
        "rows.xlsx",
        "rows.csv.gz",
    ] {
        fs::write(folder.join(other), "[]").unwrap();
    }
    fs::write(folder.join("wide.csv"), b"\xff\xfea\0,\0b\0\n\0").unwrap();
    let saved = "this is a file of torch.save (weights or pickled objects), no data";
    let train = "train --model mlp --hidden 8 --batch 8 --steps 2 --quiet";
    for (file, wanted) in [
        ("w.pt", saved),
        ("w.PTH", saved),
        (
            "m.pt2",
            "this is a program that PyTorch exported, no data: give it as --model",
        ),
        (
            "w.safetensors",
            "it has the weights of a model (`in.weight` and others)",
        ),
        ("m.onnx", "this is a model of ONNX, no data"),
        ("rows.json", "JSON is not read: save the samples as arrays"),
        ("one.JPG", "this is one image: name the folder"),
        ("rows.jsonl", "JSON Lines is not read: save it as a table"),
        ("rows.xlsx", "spreadsheets are not read: save it as CSV"),
        ("rows.csv.gz", "this is compressed or an archive: unpack it"),
        ("wide.csv", "this text is UTF-16, and UTF-8 is needed"),
    ] {
        fails(
            folder,
            &format!("{train} --data {file}"),
            2,
            &["--data", file, wanted],
        );
        fails(folder, &format!("train --data {file}"), 2, &[wanted]);
        let evaluated = format!("{train} --data d.safetensors --eval-data {file}");
        fails(folder, &evaluated, 2, &["--eval-data", wanted]);
    }
    printed(
        folder,
        &format!("{train} --data d.safetensors --out kept/run"),
    );
    // Regression test: these were reported as images.
    for (runs, wanted) in [
        ("kept/run", "this is the folder of a run, no data"),
        ("kept", "there are folders of runs in this folder"),
    ] {
        fails(
            folder,
            &format!("{train} --data {runs}"),
            2,
            &["--data", wanted],
        );
        fails(folder, &format!("train --data {runs}"), 2, &[wanted]);
    }
    fails(
        folder,
        "eval --run kept/run --data w.pt",
        2,
        &["--data w.pt: ", saved],
    );
}

/// Regression test: the message only gave shapes.
#[test]
fn targets_of_the_other_kind_of_loss_are_told_which_one_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = xy(40);
    let train = "train --model mlp --hidden 8 --batch 8 --steps 2 --quiet --data d.safetensors";
    let save = |y: &Tensor| {
        Tensor::write_safetensors(&[("x", &x), ("y", y)], folder.join("d.safetensors")).unwrap();
    };
    save(&y.one_hot(3).to_kind(Kind::Float));
    let wanted = [
        "shape [3], and [] is needed",
        "`y.argmax(axis=1)`",
        "--loss mse",
    ];
    fails(folder, &format!("{train} --loss cross-entropy"), 2, &wanted);
    save(&y);
    let wanted = [
        "shape [], and [3] is needed",
        "where targets are classes, take --loss cross-entropy",
    ];
    fails(
        folder,
        &format!("{train} --loss mse --outputs 3"),
        2,
        &wanted,
    );
}

/// Regression test: only `eval` reported it.
#[test]
fn the_accuracy_of_a_classifier_stands_beside_its_held_out_loss() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = xy(40);
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    let train = "train --model mlp --hidden 8 --batch 8 --data d.safetensors --held-out 0.3 --steps 4 \
                 --eval-every 2 --out run";
    let (told, lines) = succeeded(gpipe(folder, train), train);
    let lines: Vec<&str> = lines
        .lines()
        .filter(|line| line.contains(", accuracy "))
        .collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let steps = metrics(folder, "run");
    let mut known = steps
        .iter()
        .filter_map(|step| step["held_out_accuracy"].as_f64());
    let judged = as_json(folder, "eval --run run --json");
    assert_eq!(known.next_back(), judged["accuracy"].as_f64());
    let percent = 100.0 * judged["accuracy"].as_f64().unwrap();
    let line = format!("accuracy       {percent:.2} % held out");
    assert!(told.contains(&line), "{told}");
    // Models of numbers have no accuracy.
    let numbers = train.replace("--out run", "--loss mse --out numbers --quiet");
    let x = Tensor::arange(40 * 4, (Kind::Float, Device::Cpu)).view([40, 4]);
    let y = x.select(1, 0).sin();
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    let told = printed(folder, &numbers);
    assert!(!told.contains("accuracy"), "{told}");
}
