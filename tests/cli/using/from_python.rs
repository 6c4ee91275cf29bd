//! Common habits from PyTorch: custom names and lengths, weights of a wrapped model, data in a fixed order.

use std::fs;
use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};
use serde_json::Value;

use super::hugging_face::{copy, fixture, json};
use super::{printed, refused};
use crate::run::{config, gpipe, losses};

/// A folder with exported programs.
fn folder(programs: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exported");
    for name in programs {
        let file = format!("{name}.pt2");
        fs::copy(fixtures.join(&file), folder.path().join(&file)).unwrap();
    }
    folder
}

fn write(folder: &Path, file: &str, arrays: &[(&str, &Tensor)]) {
    Tensor::write_safetensors(arrays, folder.join(file)).unwrap();
}

/// Tokens below 19, different in each row.
fn tokens(rows: i64, length: i64) -> Tensor {
    let all = Tensor::arange(rows * length, (Kind::Int64, Device::Cpu)) * 7;
    all.remainder(19).reshape([rows, length])
}

fn told(folder: &Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    // Whatever the terminal's width.
    errors.split_whitespace().collect::<Vec<_>>().join(" ")
}

const LENGTHS: &str = "--model lengths.pt2 --loss cross-entropy --batch 8 --micro 2 --steps 3 \
                       --threads-per-stage 1 --quiet";

/// Regression test: with one input, arrays had to be called `x`, whatever the model's name for it.
#[test]
fn the_only_input_has_its_own_name_too() {
    let here = folder(&["lengths"]);
    let here = here.path();
    let (x, y) = (tokens(40, 6), tokens(40, 6).flip([1]));
    write(here, "x.safetensors", &[("x", &x), ("y", &y)]);
    write(here, "ids.safetensors", &[("ids", &x), ("y", &y)]);
    let train = [
        ("ids_train", &x),
        ("y_train", &y),
        ("ids_test", &x),
        ("y_test", &y),
    ];
    write(here, "parts.safetensors", &train);
    let run = |data: &str| {
        printed(
            here,
            &format!("train {LENGTHS} --data {data}.safetensors --out {data}"),
        );
        losses(here, data)
    };
    assert_eq!(run("x"), run("ids"));
    run("parts");
    let held_out = printed(here, "eval --run parts --json");
    let held_out: Value = serde_json::from_str(&held_out).unwrap();
    assert_eq!(held_out["count"], 40, "{held_out}");
    write(here, "other.safetensors", &[("tokens", &x), ("y", &y)]);
    refused(
        here,
        &format!("train {LENGTHS} --data other.safetensors --out other"),
        &["no arrays `ids` or `x` and `y`; there are `tokens`, `y`"],
    );
}

/// Regression test: only the example's length was accepted, and the dynamic dimension was not mentioned.
#[test]
fn a_program_of_any_length_takes_that_of_the_data_and_of_context() {
    let here = folder(&["lengths", "decoder", "frames"]);
    let here = here.path();
    let listed = printed(here, "models lengths.pt2");
    assert!(
        listed.contains("input   ids int64 [batch, 6]; dimension 1 of ids may be 5 to 64"),
        "{listed}"
    );
    for length in [9, 24] {
        let (x, y) = (tokens(40, length), tokens(40, length).flip([1]));
        write(
            here,
            &format!("{length}.safetensors"),
            &[("ids", &x), ("y", &y)],
        );
        let train = format!("train {LENGTHS} --data {length}.safetensors");
        printed(here, &format!("{train} --out whole{length}"));
        let cut = "--devices cpu,cpu,cpu --schedule 1f1b --recompute always";
        printed(here, &format!("{train} {cut} --out cut{length}"));
        let whole = losses(here, &format!("whole{length}"));
        assert_eq!(whole, losses(here, &format!("cut{length}")));
        printed(
            here,
            &format!("train --resume whole{length} --steps 5 --quiet"),
        );
    }
    // A run is evaluated on other lengths than it was trained on.
    printed(here, "eval --run whole9 --data 24.safetensors --json");
    let text = "a tall white wheel let it heat ".repeat(60);
    fs::write(here.join("text.txt"), text).unwrap();
    printed(
        here,
        &format!("train {LENGTHS} --data text.txt --context 17 --out text"),
    );
    assert_eq!(
        config(here, "text")["model"]["context"].as_integer(),
        Some(17)
    );
    printed(here, "train --resume text --steps 5 --quiet");
    let written = printed(here, "generate --run text --prompt all --tokens 3 --json");
    assert!(
        written.contains("\"tokens\":3") || written.contains("\"tokens\": 3"),
        "{written}"
    );
    // The number of a series' frames is computed from its length.
    let wave = Tensor::randn([40, 3, 21], (Kind::Float, Device::Cpu));
    let frames = Tensor::randn([40, 10, 4], (Kind::Float, Device::Cpu));
    write(
        here,
        "frames.safetensors",
        &[("wave", &wave), ("y", &frames)],
    );
    let train = "train --model frames.pt2 --loss mse --batch 8 --steps 1 --quiet --out frames";
    printed(here, &format!("{train} --data frames.safetensors"));

    let long = tokens(40, 65);
    write(here, "long.safetensors", &[("x", &long), ("y", &long)]);
    let cases: [(&str, &[&str]); 5] = [
        (
            "--data long.safetensors",
            &[
                "dimension 1 of the input `ids`",
                "have 65 there",
                "exported for 5 to 64",
            ],
        ),
        (
            "--data text.txt --context 65",
            &["--context", "exported for 5 to 64"],
        ),
        (
            "--data text.txt --context many",
            &["--context", "whole number of tokens"],
        ),
        (
            "--data 9.safetensors --context 8",
            &["have the shape [9], and [8] is needed", "--context"],
        ),
        (
            "--data text.txt --layers 3",
            &["--layers: the sizes of `lengths.pt2` are in the file"],
        ),
    ];
    for (args, wanted) in cases {
        refused(
            here,
            &format!("train {LENGTHS} --out refused {args}"),
            wanted,
        );
    }
    let fixed = "train --model decoder.pt2 --loss cross-entropy --steps 1 --batch 8 --out refused";
    refused(
        here,
        &format!("{fixed} --data text.txt --context 8"),
        &["sequences of 6 tokens alone", "dimension 1 is Dim.DYNAMIC"],
    );
    refused(
        here,
        &format!("{fixed} --data 9.safetensors"),
        &[
            "the shape [9], and [6] is needed",
            "if dimension 1 is Dim.DYNAMIC",
        ],
    );
}

/// Regression test: the names in every later checkpoint of the wrapped model were refused one by one, and so
/// was a tensor under one of its two names.
#[test]
fn a_program_of_a_wrapper_takes_the_weights_of_the_model() {
    let here = folder(&["lengths", "decoder"]);
    let here = here.path();
    let plain = |run: &str| {
        printed(here, &format!("export --run {run} -o {run}.safetensors"));
        Tensor::read_safetensors(here.join(format!("{run}.safetensors"))).unwrap()
    };
    let train = format!("train {LENGTHS} --data synthetic");
    printed(here, &format!("{train} --out one"));
    let all: Vec<(String, Tensor)> = (plain("one").into_iter())
        .map(|(name, tensor)| (name.strip_prefix("m.").unwrap().to_owned(), tensor))
        .collect();
    Tensor::write_safetensors(&all, here.join("model.safetensors")).unwrap();
    printed(
        here,
        &format!("{train} --weights one.safetensors --out two"),
    );
    let train = format!("{train} --weights model.safetensors --out three");
    let told = told(here, &train.replace(" --quiet", ""));
    assert!(
        told.contains("every name of the program begins with `m.`"),
        "{told}"
    );
    assert_eq!(losses(here, "two"), losses(here, "three"));
    // A name that matches neither is refused as before.
    let odd = [("head.weight", &all[0].1), ("other", &all[0].1)];
    write(here, "odd.safetensors", &odd);
    refused(
        here,
        &format!("train {LENGTHS} --data synthetic --weights odd.safetensors --out four"),
        &[
            "its names are not those of the model's state_dict",
            "Missing are",
        ],
    );

    let tied = "train --model decoder.pt2 --loss cross-entropy --data synthetic --batch 8 --steps 2 --quiet";
    printed(here, &format!("{tied} --out tied"));
    let mut once = plain("tied");
    printed(
        here,
        &format!("{tied} --weights tied.safetensors --out twice"),
    );
    once.retain(|(name, _)| name != "head.weight");
    Tensor::write_safetensors(&once, here.join("once.safetensors")).unwrap();
    printed(
        here,
        &format!("{tied} --weights once.safetensors --out once"),
    );
    assert_eq!(losses(here, "twice"), losses(here, "once"));
    once.retain(|(name, _)| name != "embed.weight");
    Tensor::write_safetensors(&once, here.join("none.safetensors")).unwrap();
    refused(
        here,
        &format!("{tied} --weights none.safetensors --out none"),
        &["Missing are `embed.weight`, `head.weight`"],
    );
}

/// Regression test: the order of the samples could not be seen. Here the targets are ten times a sample's
/// number and the outputs near zero, so a sample's loss identifies it.
#[test]
fn samples_come_in_the_order_of_the_data_where_that_is_asked_for() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let x = Tensor::zeros([12, 2], (Kind::Float, Device::Cpu));
    let y = Tensor::arange(12, (Kind::Float, Device::Cpu)).unsqueeze(1) * 10;
    write(here, "d.safetensors", &[("x", &x), ("y", &y)]);
    let number = |loss: f64| (loss.sqrt() / 10.0).round() as u32;
    let run = |out: &str, more: &str| -> Vec<u32> {
        // A near-zero rate keeps the outputs unchanged.
        printed(
            here,
            &format!(
                "train --model mlp --loss mse --data d.safetensors --batch 1 --micro 1 --steps 24 \
                 --devices cpu --optimizer sgd --lr 1e-12 --normalise none --quiet --out {out} {more}"
            ),
        );
        let all = losses(here, out).into_iter();
        all.map(|loss| number(loss.parse().unwrap())).collect()
    };
    let epoch: Vec<u32> = (0..12).collect();
    let all = run("all", "--shuffle=false --held-out 0");
    assert_eq!(all, [&epoch[..], &epoch].concat());
    // The last ones are held out.
    let most = run("most", "--shuffle=false --held-out 0.25");
    assert_eq!(most[..18], [&epoch[..9], &epoch[..9]].concat());
    // A run is evaluated on its held-out samples, and resumes in its order.
    let held_out: Value = serde_json::from_str(&printed(here, "eval --run most --json")).unwrap();
    assert_eq!(held_out["count"], 3, "{held_out}");
    assert_eq!(number(held_out["loss"].as_f64().unwrap()), 10);
    printed(here, "train --resume most --steps 30 --quiet");
    let on: Vec<u32> = (losses(here, "most")[24..].iter())
        .map(|loss| number(loss.parse().unwrap()))
        .collect();
    assert_eq!(on, [6, 7, 8, 0, 1, 2]);
    let other = "train --resume most --steps 40 --shuffle=true";
    refused(here, other, &["shuffle"]);
    // By default each epoch is a new permutation.
    let drawn = run("drawn", "--held-out 0");
    let (first, second) = drawn.split_at(12);
    assert!(first != epoch && first != second, "{drawn:?}");
    for own in [first, second] {
        let mut own = own.to_vec();
        own.sort_unstable();
        assert_eq!(own, epoch);
    }
}

/// A text is read once from beginning to end in each epoch.
#[test]
fn windows_of_a_text_come_side_by_side_where_that_is_asked_for() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    // Reading in order shows the letters of one half, then those of the other.
    let text = "ab".repeat(400) + &"cd".repeat(400);
    fs::write(here.join("text.txt"), text).unwrap();
    let run = |out: &str, more: &str| {
        printed(
            here,
            &format!(
                "train --model gpt --layers 1 --d-model 8 --heads 2 --context 8 --data text.txt --batch 10 \
                 --micro 1 --devices cpu --steps 18 --held-out 0 --lr 0.02 --warmup 0 --quiet --out {out} {more}"
            ),
        );
        losses(here, out)
            .iter()
            .map(|loss| loss.parse::<f64>().unwrap())
            .collect::<Vec<_>>()
    };
    let ordered = run("ordered", "--shuffle=false");
    // The loss rises at unseen letters.
    let rise = |losses: &[f64]| {
        losses
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .fold(0.0, f64::max)
    };
    assert!(
        rise(&ordered) > 2.0 * rise(&run("drawn", "")),
        "{ordered:?}"
    );
}

/// Regression test: the message did not say that models of other kinds are accepted as .pt2.
#[test]
fn a_folder_of_another_model_is_refused_with_the_way_that_takes_it() {
    let here = copy("llama");
    let path = here.path().join("config.json");
    let mut config = json(&path);
    for (field, value) in [("model_type", "phi3"), ("logit_scale", "2")] {
        let before = config[field].clone();
        config[field] = value.into();
        fs::write(&path, config.to_string()).unwrap();
        refused(
            here.path(),
            "train --weights . --data synthetic --steps 1",
            &[field, "from a .pt2", "--model"],
        );
        config[field] = before;
    }
    assert!(fixture("llama").exists());
}

/// Regression test: such programs silently trained with other gradients.
#[test]
fn gradients_that_a_file_does_not_have_are_noted() {
    let here = folder(&["own_gradients", "lengths"]);
    let here = here.path();
    let train =
        "train --model own_gradients.pt2 --loss mse --data synthetic --batch 8 --steps 1 --out run";
    let listed = printed(here, "models own_gradients.pt2");
    let listed = listed.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [told(here, train), listed] {
        for wanted in [
            "the torch.autograd.Function `Straight` (make.py:",
            "and 1 more",
            "check_gradients",
        ] {
            assert!(told.contains(wanted), "{told}");
        }
    }
    let plain = told(
        here,
        &format!("train {LENGTHS} --data synthetic --out plain").replace(" --quiet", ""),
    );
    assert!(!plain.contains("check_gradients"), "{plain}");
}
