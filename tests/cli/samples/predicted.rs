//! `predict`: samples without targets, with trained models.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};
use serde_json::{Value, json};

use super::images::{RESNET, pictures};
use super::programs::{arrays, floats, folder as programs, whole};
use super::{FLAGS, as_json, fails, printed};
use crate::run::gpipe;

/// The samples of `predict --json`.
#[track_caller]
fn told(folder: &Path, args: &str) -> Vec<Value> {
    let told = as_json(folder, &format!("predict {args} --json"));
    told["samples"].as_array().unwrap().clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The most likely class of a sample, and its probability.
fn class(sample: &Value) -> (&str, f64) {
    let first = &sample["classes"][0];
    (text(&first["class"]), number(&first["probability"]))
}

/// Predictions must agree with `eval`.
#[test]
fn images_are_told_as_eval_judges_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pictures(&folder.join("images"));
    printed(
        folder,
        &format!("train --quiet --steps 6 {FLAGS} {RESNET} --out run"),
    );
    let all = told(folder, "--run run images --top 2");
    assert_eq!(all.len(), 20);
    let right = all.iter().filter(|own| {
        let place = Path::new(text(&own["sample"]));
        place.parent().unwrap().ends_with(class(own).0)
    });
    let judged = as_json(folder, "eval --run run --data images --json");
    assert_eq!(json!(right.count() as f64 / 20.0), judged["accuracy"]);
    for own in &all {
        let both = own["classes"].as_array().unwrap();
        let sum: f64 = both.iter().map(|own| number(&own["probability"])).sum();
        assert!(both.len() == 2 && (sum - 1.0).abs() < 1e-6, "{own}");
    }
    // Each image alone, on other stages, not in a class folder.
    fs::create_dir(folder.join("loose")).unwrap();
    for own in &all {
        let place = text(&own["sample"]);
        let name = format!("loose/{}", place.replace('/', "-"));
        fs::copy(folder.join(place), folder.join(name)).unwrap();
    }
    let loose = told(folder, "--run run loose --batch 3 --devices cpu,cpu");
    let one = told(folder, "--run run images/light/4.png images/dark");
    let same = told(
        folder,
        "--run run --data images/light/4.png --data images/dark",
    );
    assert_eq!(same, one);
    assert_eq!((loose.len(), one.len()), (20, 11));
    let find = |place: &str| all.iter().find(|own| text(&own["sample"]) == place);
    for (own, place) in [
        (&one[0], "images/light/4.png"),
        (&one[3], "images/dark/2.png"),
    ] {
        assert_eq!(text(&own["sample"]), place);
        let ((name, chance), (same, near)) = (class(own), class(find(place).unwrap()));
        assert!(name == same && (chance - near).abs() < 1e-4, "{own}");
    }
    for (own, other) in loose.iter().zip(&all) {
        assert_eq!(
            text(&own["sample"])
                .replace("loose/images-", "images/")
                .replacen('-', "/", 1),
            text(&other["sample"])
        );
        assert!(
            (class(own).1 - class(other).1).abs() < 1e-4,
            "{own} {other}"
        );
    }
    let table = printed(folder, "predict --run run images/light/4.png");
    let (name, chance) = class(find("images/light/4.png").unwrap());
    assert!(table.contains(&format!("{name}  ")), "{table}");
    assert!(
        table.contains(&format!("{:.1} %", chance * 100.0)),
        "{table}"
    );
    printed(folder, "predict --run run images -o told.csv --top 2");
    let csv = fs::read_to_string(folder.join("told.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(
        lines.next().unwrap(),
        "sample,class,probability,class_2,probability_2"
    );
    let (name, chance) = class(&all[0]);
    let first = format!("{},{name},{chance},", text(&all[0]["sample"]));
    assert!(lines.next().unwrap().starts_with(&first), "{csv}");
    assert_eq!(lines.count(), 19);
    wrong_images(folder);
}

fn wrong_images(folder: &Path) {
    fs::write(folder.join("cut.png"), "").unwrap();
    fails(
        folder,
        "predict --run run cut.png",
        2,
        &["error: cut.png: the file is empty"],
    );
    fs::create_dir(folder.join("none")).unwrap();
    fails(
        folder,
        "predict --run run none",
        2,
        &["none: there is no image in it"],
    );
    fails(folder, "predict --run run lost.png", 2, &["lost.png"]);
    fails(
        folder,
        "predict --run run images -o told.json",
        2,
        &["--output told.json: a CSV file is written"],
    );
    fs::write(folder.join("t.csv"), "a,b\n1,2\n").unwrap();
    let table = ["t.csv: this is a table, but the model was trained on images: name one (.jpg"];
    fails(folder, "predict --run run t.csv", 2, &table);
    let table = ["t.csv: the model was trained on images, and this is a table: name a folder"];
    fails(folder, "eval --run run --data t.csv", 2, &table);
    fails(
        folder,
        "generate --run run --prompt x",
        2,
        &["`predict` tells the classes or the numbers of its samples"],
    );
    // The exported weights are those used for the prediction.
    printed(folder, "export --run run -o out");
    let read = Tensor::read_safetensors(folder.join("out/model.safetensors")).unwrap();
    let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
    for name in [
        "conv1.weight",
        "bn1.running_mean",
        "layer1.0.conv1.weight",
        "fc.bias",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
}

/// Writes a table of `count` rows.
fn table(folder: &Path, name: &str, count: usize, row: impl Fn(usize) -> String, header: &str) {
    let mut all = format!("{header}\n");
    for number in 0..count {
        writeln!(all, "{}", row(number)).unwrap();
    }
    fs::write(folder.join(name), all).unwrap();
}

#[test]
fn rows_need_no_target_and_columns_no_order() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (size, age) = (|row: usize| row % 9, |row: usize| row % 7);
    let price = |row| size(row) as f64 * 0.25 - age(row) as f64 * 0.1;
    let kind = |row| if price(row) > 0.7 { "dear" } else { "cheap" };
    let known = |row| format!("{},{},{},{}", size(row), age(row), price(row), kind(row));
    table(folder, "known.csv", 80, known, "size,age,price,kind");
    let numbers = |row| format!("{},{},{}", size(row), age(row), price(row));
    table(folder, "numbers.csv", 80, numbers, "size,age,price");
    let new = |row| format!("{},no. {row},{}", age(row), size(row));
    table(folder, "new.csv", 80, new, "age,name,size");
    let train = "train --quiet --model mlp --hidden 8 --depth 2 --batch 8 --steps 20 --lr 0.01";
    printed(
        folder,
        &format!("{train} --loss mse --data numbers.csv --out numbers"),
    );
    let all = told(folder, "--run numbers new.csv");
    assert_eq!(text(&all[79]["sample"]), "new.csv, line 81");
    let off = all.iter().enumerate().map(|(row, own)| {
        let [value] = &own["values"].as_array().unwrap()[..] else {
            panic!("{own}")
        };
        (number(value) - price(row)).powi(2)
    });
    let judged = as_json(folder, "eval --run numbers --data numbers.csv --json");
    let off = off.sum::<f64>() / 80.0 - number(&judged["rmse"]).powi(2);
    assert!(off.abs() < 1e-5, "{off}");
    let shown = printed(folder, "predict --run numbers new.csv");
    assert!(shown.starts_with("sample"), "{shown}");
    assert!(shown.lines().next().unwrap().ends_with("price"), "{shown}");
    named_by_a_column(folder);
    // The hint for a missing target column names `predict`.
    let tip = [
        "there is no column `price`",
        "`predict --run RUN PATH` tells it",
    ];
    fails(folder, "eval --run numbers --data new.csv", 2, &tip);

    // For this model the price is an input, and is required by name.
    printed(folder, &format!("{train} --data known.csv --out kinds"));
    fails(
        folder,
        "predict --run kinds new.csv",
        2,
        &["new.csv, line 1: there is no column `price`"],
    );
    let all = told(folder, "--run kinds numbers.csv known.csv");
    assert_eq!(all.len(), 160);
    let right = (0..80).filter(|row| class(&all[*row]).0 == kind(*row));
    let judged = as_json(folder, "eval --run kinds --data known.csv --json");
    assert_eq!(json!(right.count() as f64 / 80.0), judged["accuracy"]);
    for row in 0..80 {
        assert_eq!(all[row]["classes"], all[80 + row]["classes"]);
    }
    fs::create_dir(folder.join("images")).unwrap();
    fails(
        folder,
        "predict --run kinds images",
        2,
        &["images: this is an empty folder, but the model was trained on a table"],
    );
    fs::write(folder.join("images/a.png"), "").unwrap();
    fails(
        folder,
        "predict --run kinds images",
        2,
        &["images: this is images, but the model was trained on a table"],
    );
}

/// Checks that `--id` names the predictions, so that they need not be joined to the rows by hand.
fn named_by_a_column(folder: &Path) {
    let plain = told(folder, "--run numbers new.csv");
    let named = told(folder, "--run numbers new.csv new.csv --id name");
    assert_eq!(named.len(), 160);
    for (row, own) in named.iter().enumerate() {
        let row = row % 80;
        assert_eq!(text(&own["sample"]), format!("no. {row}"));
        assert_eq!(own["values"], plain[row]["values"]);
    }
    printed(
        folder,
        "predict --run numbers new.csv --id name -o told.csv",
    );
    let csv = fs::read_to_string(folder.join("told.csv")).unwrap();
    let first = format!("name,price\nno. 0,{}\n", plain[0]["values"][0]);
    assert!(csv.starts_with(&first), "{csv}");
    let wrong = "predict --run numbers new.csv --id plant";
    let none = ["--id: new.csv, line 1: there is no column `plant`; there are `age`, `name`"];
    fails(folder, wrong, 2, &none);
    Tensor::ones([2, 2], (Kind::Float, Device::Cpu))
        .write_npy(folder.join("x.npy"))
        .unwrap();
    let none = ["--id: x.npy: this is no table, so it has no column `name`"];
    fails(folder, "predict --run numbers x.npy --id name", 2, &none);
}

#[test]
fn arrays_are_told_in_whatever_batches_a_program_takes() {
    let folder = programs(&["fixed", "mlp"]);
    let folder = folder.path();
    let x = floats(&[30, 8]);
    arrays(
        folder,
        "d.safetensors",
        &[("x", &x), ("y", &floats(&[30, 3]))],
    );
    arrays(folder, "x.safetensors", &[("some", &x)]);
    arrays(folder, "two.safetensors", &[("a", &x), ("b", &x)]);
    x.write_npy(folder.join("x.npy")).unwrap();
    let train = "train --quiet --micro 2 --batch 4 --steps 3 --held-out 0";
    printed(
        folder,
        &format!("{train} --model fixed.pt2 --loss mse --data d.safetensors --out run"),
    );
    let all = told(folder, "--run run d.safetensors");
    assert_eq!(all.len(), 30);
    let values: Vec<f64> = all
        .iter()
        .flat_map(|own| own["values"].as_array().unwrap().iter().map(number))
        .collect();
    // The two samples that fill no batch are predicted; eval leaves them out.
    let off = (Tensor::from_slice(&values) - floats(&[90]).to_kind(Kind::Double)).square();
    let off = off.narrow(0, 0, 84).mean(Kind::Double).double_value(&[]);
    let judged = as_json(folder, "eval --run run --data d.safetensors --json");
    assert!(
        (off - number(&judged["loss"])).abs() < 1e-6,
        "{off} {judged}"
    );
    for other in ["x.safetensors", "x.npy"] {
        let same = told(folder, &format!("--run run {other}"));
        let values = |all: &[Value]| {
            all.iter()
                .map(|own| own["values"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(values(&same), values(&all), "{other}");
    }
    let none = ["two.safetensors: there is no array `input` or `x`; there are `a`, `b`"];
    fails(folder, "predict --run run two.safetensors", 2, &none);
    let row = printed(folder, "predict --run run x.npy");
    assert!(
        row.lines()
            .next()
            .unwrap()
            .ends_with("value 1  value 2  value 3"),
        "{row}"
    );

    // Several classes that may apply at once.
    let shares = floats(&[30, 3]).abs();
    arrays(folder, "s.safetensors", &[("x", &x), ("y", &shares)]);
    printed(
        folder,
        &format!("{train} --model mlp.pt2 --loss bce --data s.safetensors --out shares"),
    );
    let all = told(folder, "--run shares x.npy");
    for own in &all {
        let chances = own["probabilities"].as_array().unwrap();
        assert!(chances.len() == 3 && chances.iter().all(|own| (0.0..1.0).contains(&number(own))));
    }
    // Classes without names have numbers.
    arrays(
        folder,
        "c.safetensors",
        &[("x", &x), ("y", &whole(&[30], 3))],
    );
    printed(
        folder,
        &format!("{train} --model mlp.pt2 --loss cross-entropy --data c.safetensors --out classes"),
    );
    let all = told(folder, "--run classes x.npy");
    assert!(
        all.iter()
            .all(|own| ["0", "1", "2"].contains(&class(own).0))
    );
}

#[test]
fn what_is_no_model_of_samples_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("x.csv"), "a\n1\n").unwrap();
    let small = "--layers 1 --d-model 8 --heads 1 --context 8 --batch 2 --micro 1";
    printed(
        folder,
        &format!("train --quiet --steps 1 {small} --out text"),
    );
    fails(
        folder,
        "predict --run text x.csv",
        2,
        &["`gpt` is a model of texts: `generate --prompt TEXT` goes on with a text"],
    );
    printed(
        folder,
        "train --quiet --steps 1 --model mlp --data synthetic --batch 4 --out made-up",
    );
    fails(
        folder,
        "predict --run made-up x.csv",
        2,
        &["it was not trained on samples of a file"],
    );
    for verb in ["classify", "inference"] {
        fails(
            folder,
            &format!("{verb} x.csv"),
            2,
            &["predict --run RUN PATH"],
        );
    }
    fails(folder, "predict --run text", 2, &["<PATH>"]);
}

/// Regression test: the message named no file, did not say what the run takes, and suggested a flag that
/// `predict` lacks.
#[test]
fn an_image_for_a_model_of_numbers_is_refused_with_what_the_model_takes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (x, y) = (floats(&[40, 8]), whole(&[40], 2));
    arrays(folder, "d.safetensors", &[("x", &x), ("y", &y)]);
    let small =
        "--model mlp --hidden 8 --depth 2 --batch 4 --micro 2 --steps 1 --data d.safetensors";
    printed(folder, &format!("train --quiet {small} --out rows"));
    fs::create_dir(folder.join("images")).unwrap();
    for path in ["one.png", "images/one.png"] {
        let pixels = image::RgbImage::new(4, 4);
        pixels.save(folder.join(path)).unwrap();
    }
    for path in ["one.png", "images"] {
        let wanted = format!("{path}: images are for models that take floats, ");
        let args = format!("predict --run rows {path}");
        fails(folder, &args, 2, &[&wanted, "; `mlp` takes "]);
        let errors = String::from_utf8(gpipe(folder, &args).stderr).unwrap();
        assert!(!errors.contains("--model"), "{errors}");
    }
}

/// Regression test: for a NaN among the inputs, the message suggested a smaller --lr, which did not help, and
/// wrongly reported divergence.
#[test]
fn a_sample_that_is_not_finite_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let x = floats(&[60, 8]);
    let y = Tensor::arange(60, (Kind::Int64, Device::Cpu)).remainder(3);
    arrays(folder, "good.safetensors", &[("x", &x), ("y", &y)]);
    let bad = x.copy();
    let _ = bad.get(17).get(2).fill_(f64::NAN);
    arrays(folder, "bad.safetensors", &[("x", &bad), ("y", &y)]);
    let train = "train --model mlp --loss cross-entropy --steps 30 --batch 16 --quiet --held-out 0";
    printed(
        folder,
        &format!("{train} --data good.safetensors --out run"),
    );
    let sample = "bad.safetensors: sample 17 (counted from 0) has inputs that are NaN or infinite";
    let said = [
        "the loss is NaN at step ",
        sample,
        "leave it out, or, where that is meant",
    ];
    fails(folder, &format!("{train} --data bad.safetensors"), 1, &said);
    let scaled = format!("{train} --data bad.safetensors --normalise standard");
    fails(
        folder,
        &scaled,
        2,
        &["bad.safetensors, sample 17: it has numbers that are NaN or infinite"],
    );
    fails(
        folder,
        "eval --run run --data bad.safetensors",
        2,
        &[sample],
    );
    // Nothing is learnt yet, so the advice of a smaller --lr would not help.
    let huge = Tensor::full([60, 3], 1e30, (Kind::Float, Device::Cpu));
    arrays(folder, "huge.safetensors", &[("x", &x), ("y", &huge)]);
    let train = "train --model mlp --loss mse --steps 3 --batch 16 --quiet --held-out 0";
    let said = [
        "the loss is inf at step 1, before anything was learnt",
        "--normalise standard",
    ];
    fails(
        folder,
        &format!("{train} --normalise none --data huge.safetensors"),
        1,
        &said,
    );
    let none = ["sample 17 (counted from 0) has inputs that are NaN or infinite"];
    fails(folder, "predict --run run bad.safetensors", 2, &none);
}
