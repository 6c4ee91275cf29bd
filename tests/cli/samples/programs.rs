//! Programs that PyTorch exported, on data of any form.

use std::fs;
use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};

use super::{as_json, config, fails, printed, trained};
use crate::run::{gpipe, losses};

/// A folder with programs of both folders of fixtures.
fn folder(programs: &[&str]) -> tempfile::TempDir {
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

fn arrays(folder: &Path, name: &str, arrays: &[(&str, &Tensor)]) {
    Tensor::write_safetensors(arrays, folder.join(name)).unwrap();
}

fn floats(shape: &[i64]) -> Tensor {
    let count = shape.iter().product::<i64>();
    let all = Tensor::arange(count, (Kind::Float, Device::Cpu));
    (all * 0.7).sin().view(shape)
}

fn whole(shape: &[i64], below: i64) -> Tensor {
    let count = shape.iter().product::<i64>();
    let all = Tensor::arange(count, (Kind::Int64, Device::Cpu));
    all.remainder(below).view(shape)
}

/// What standard error says of a run that ends well.
fn said(folder: &Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args}: {errors}");
    errors
}

/// The last batch was given to the program as it was, which ended `eval` with libtorch's error.
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
        notes.contains("1 of 9 held-out samples are not measured"),
        "{notes}"
    );
    let judged = as_json(folder, "eval --run run --json");
    assert_eq!(
        (&judged["count"], &judged["left_out"]),
        (&8.into(), &1.into())
    );
    let told = printed(folder, "eval --run run");
    assert!(told.contains("left out    1 samples"), "{told}");
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
        &["--batch 3", "micro-batches of 2 to 2"],
    );
    arrays(
        folder,
        "one.safetensors",
        &[("x", &floats(&[1, 8])), ("y", &floats(&[1, 3]))],
    );
    let few = [
        "one.safetensors",
        "1 samples do not make a batch of 4",
        "--batch",
    ];
    fails(folder, "eval --run run --data one.safetensors", 2, &few);
    // Nothing is measured, rather than the loss of nothing, which is no number.
    let notes = said(folder, &format!("{train} --held-out 0.1 --out none"));
    assert!(
        notes.contains("the held-out loss is not measured: 3 samples"),
        "{notes}"
    );
}

/// They were taken for tokens, of which two were known.
#[test]
fn whole_numbers_that_are_features_are_any_whole_numbers() {
    let folder = folder(&["counts"]);
    let folder = folder.path();
    let x = whole(&[40, 4], 2001) * 7 - 5000;
    arrays(
        folder,
        "d.safetensors",
        &[("x", &x), ("y", &whole(&[40], 3))],
    );
    trained(
        folder,
        "--model counts.pt2 --loss cross-entropy --data d.safetensors",
    );
    // A table is none of texts to it.
    let rows: String = (0..40)
        .map(|at| format!("{},{at},-1,9,{}\n", at - 20, at % 3))
        .collect();
    fs::write(folder.join("d.csv"), format!("a,b,c,d,kind\n{rows}")).unwrap();
    let train = "train --model counts.pt2 --loss cross-entropy --batch 8 --steps 1 --quiet";
    printed(folder, &format!("{train} --data d.csv"));
    // Without data it is made up, not Moby-Dick.
    printed(folder, train);
    fs::write(
        folder.join("d.csv"),
        "a,b,c,d,kind\n1,2,3,4,0\n1,2.5,3,4,1\n",
    )
    .unwrap();
    let half = ["line 3", "an input is 2.5, which is no whole number"];
    let train = train.replace("--batch 8", "--batch 2 --micro 1");
    fails(
        folder,
        &format!("{train} --held-out 0 --data d.csv"),
        1,
        &half,
    );
}

/// libtorch has no word for it, and a GPU ends the program.
#[test]
fn binary_targets_are_from_0_to_1() {
    let folder = folder(&["mlp", "judged"]);
    let folder = folder.path();
    let train = "train --loss bce --batch 8 --micro 2 --steps 8 --quiet --held-out 0";
    let y = floats(&[32, 3]).abs();
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[32, 8])), ("y", &y)],
    );
    printed(
        folder,
        &format!("{train} --model mlp.pt2 --data d.safetensors"),
    );
    let _ = y.get(17).get(1).fill_(1.5);
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[32, 8])), ("y", &y)],
    );
    let wrong = ["d.safetensors, sample 17", "a target is 1.5", "from 0 to 1"];
    fails(
        folder,
        &format!("{train} --model mlp.pt2 --data d.safetensors"),
        1,
        &wrong,
    );
    let rows: String = (0..32).map(|at| format!("{at},{}\n", at % 3)).collect();
    fs::write(folder.join("d.csv"), format!("a,b\n{rows}")).unwrap();
    let wrong = ["d.csv, line", "a target is 2"];
    fails(
        folder,
        &format!("{train} --model mlp --hidden 4 --data d.csv"),
        1,
        &wrong,
    );
}

/// -100 was an error without a flag, and with one any other number.
#[test]
fn targets_that_are_ignored_count_nothing_however_a_batch_is_cut() {
    let folder = folder(&["mlp"]);
    let folder = folder.path();
    let (x, y) = (floats(&[24, 8]), whole(&[24], 3));
    let train = "train --model mlp.pt2 --loss cross-entropy --data d.safetensors --batch 6 --steps 3 \
                 --quiet --held-out 0.25 --checkpoint-every 3 --threads-per-stage 1";
    for (ignored, flag) in [
        (-100, ""),
        (255, "--ignore-index 255"),
        (-1, "--ignore-index -1"),
    ] {
        let y = y.masked_fill(&whole(&[24], 5).le(1), ignored);
        arrays(folder, "d.safetensors", &[("x", &x), ("y", &y)]);
        for micro in [1, 3] {
            let out = format!("run{ignored}of{micro}");
            printed(
                folder,
                &format!("{train} {flag} --micro {micro} --out {out}"),
            );
            let judged = as_json(
                folder,
                &format!("eval --run {out} --json --data d.safetensors"),
            );
            let share = judged["accuracy"].as_f64().unwrap() * 14.0;
            assert!((share - share.round()).abs() < 1e-9, "{judged}");
        }
        let [one, three] = [1, 3].map(|micro| {
            let told = losses(folder, &format!("run{ignored}of{micro}"));
            told.iter()
                .map(|own| own.parse().unwrap())
                .collect::<Vec<f64>>()
        });
        for (one, three) in one.iter().zip(&three) {
            assert!((one - three).abs() < 1e-5, "{one} {three}");
        }
    }
    let other = ["below 0", "but for -100"];
    fails(folder, train, 1, &other);
    let y = y.masked_fill(&y.eq(1), 255);
    arrays(folder, "d.safetensors", &[("x", &x), ("y", &y)]);
    fails(
        folder,
        train,
        1,
        &["a target is 255", "3 classes", "--ignore-index 255"],
    );
}

/// Classes were looked for in the last dimension alone.
#[test]
fn classes_may_be_in_the_second_dimension() {
    let folder = folder(&["signal", "turned"]);
    let folder = folder.path();
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[40, 2, 8])), ("y", &whole(&[40, 8], 5))],
    );
    let judged = trained(
        folder,
        "--model signal.pt2 --loss cross-entropy --data d.safetensors",
    );
    assert!(judged["accuracy"].is_number(), "{judged}");
    // The other way around is as good, where the targets say so.
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[40, 2, 8])), ("y", &whole(&[40, 5], 8))],
    );
    let train = "train --model signal.pt2 --loss cross-entropy --batch 8 --steps 1 --quiet";
    printed(folder, &format!("{train} --data d.safetensors"));
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[40, 2, 8])), ("y", &whole(&[40, 7], 5))],
    );
    fails(
        folder,
        &format!("{train} --data d.safetensors"),
        2,
        &["[7]", "[5] is needed"],
    );
    fs::write(
        folder.join("text.txt"),
        "the whale ate the hat. ".repeat(40),
    )
    .unwrap();
    let train = "train --model turned.pt2 --loss cross-entropy --batch 8 --steps 2 --quiet --out text \
                 --checkpoint-every 2 --data text.txt";
    printed(folder, train);
    let judged = as_json(folder, "eval --run text --json");
    assert_eq!(judged["unit"], "character");
}

/// A loss of its own took no data at all.
#[test]
fn a_program_with_its_own_loss_takes_its_inputs_by_name_or_order() {
    let folder = folder(&["judged", "triplet", "coder"]);
    let folder = folder.path();
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[44, 8])), ("y", &whole(&[44], 3))],
    );
    // Four are held out, in two micro-batches of the eval.
    trained(folder, "--model judged.pt2 --data d.safetensors");
    assert_eq!(
        config(folder, "whole")["loss"]["name"].as_str(),
        Some("output")
    );
    let rows: String = (0..30)
        .map(|at| format!("{at},2,3,4,5,6,7,8,{}\n", ["a", "b"][at % 2]))
        .collect();
    fs::write(
        folder.join("d.csv"),
        format!("a,b,c,d,e,f,g,h,kind\n{rows}"),
    )
    .unwrap();
    let train = "train --batch 8 --steps 1 --quiet";
    printed(folder, &format!("{train} --model judged.pt2 --data d.csv"));

    let (word, side, wanted) = (whole(&[43], 6), floats(&[43, 3]), floats(&[43]));
    let all = [("word", &word), ("side", &side), ("wanted", &wanted)];
    arrays(folder, "three.safetensors", &all);
    fs::remove_dir_all(folder.join("whole")).unwrap();
    fs::remove_dir_all(folder.join("half")).unwrap();
    trained(folder, "--model triplet.pt2 --data three.safetensors");
    let profile = "profile --model triplet.pt2 --data three.safetensors --batch 8 --quick --json";
    assert_eq!(
        as_json(folder, profile)["input"]["data"],
        "three.safetensors"
    );
    let word = &word + 1;
    arrays(
        folder,
        "three.safetensors",
        &[("word", &word), all[1], all[2]],
    );
    let wrong = [
        "three.safetensors, sample ",
        "`word`: an input is 6",
        "0 to 5",
    ];
    let train = "train --batch 8 --steps 9 --quiet --held-out 0";
    fails(
        folder,
        &format!("{train} --model triplet.pt2 --data three.safetensors"),
        1,
        &wrong,
    );
    let wrong = ["`word`, `side`, `wanted`", "there are `x`, `y`"];
    fails(
        folder,
        &format!("{train} --model triplet.pt2 --data d.safetensors"),
        2,
        &wrong,
    );
    fails(
        folder,
        &format!("{train} --model triplet.pt2 --data d.csv"),
        2,
        &["an array for each"],
    );
    arrays(
        folder,
        "short.safetensors",
        &[("word", &word.get(0).view(1)), all[1], all[2]],
    );
    fails(
        folder,
        &format!("{train} --model triplet.pt2 --data short.safetensors"),
        2,
        &["`word` has 1 items"],
    );

    arrays(folder, "alone.safetensors", &[("x", &floats(&[30, 4]))]);
    printed(
        folder,
        &format!("{train} --model coder.pt2 --data alone.safetensors"),
    );
}

/// The loss of each micro-batch counted alike, whatever its samples.
#[test]
fn the_programs_own_loss_counts_samples_alike() {
    let folder = folder(&["coder"]);
    let folder = folder.path();
    let x = floats(&[45, 4]) * Tensor::arange(45, (Kind::Float, Device::Cpu)).view([45, 1]);
    arrays(folder, "d.safetensors", &[("x", &x)]);
    let train = "train --model coder.pt2 --data d.safetensors --batch 8 --steps 1 --quiet --held-out 0 \
                 --checkpoint-every 1 --threads-per-stage 1";
    printed(folder, &format!("{train} --micro 1 --out one"));
    printed(folder, &format!("{train} --micro 3 --out three"));
    let loss = |run: &str, batch: usize| {
        let eval = format!("eval --run {run} --data d.safetensors --json --batch {batch}");
        as_json(folder, &eval)["loss"].as_f64().unwrap()
    };
    let [whole, cut] = [loss("one", 45), loss("three", 8)];
    assert!((whole - cut).abs() < 1e-4 * whole, "{whole} {cut}");
}

#[test]
fn several_inputs_have_arrays_of_their_names_and_targets() {
    let folder = folder(&["masked"]);
    let folder = folder.path();
    let mask = whole(&[40, 4], 2);
    let (x, y) = (floats(&[40, 4]), whole(&[40], 3));
    arrays(
        folder,
        "d.safetensors",
        &[
            ("numbers", &x),
            ("mask", &mask),
            ("y", &y),
            ("numbers_test", &x.narrow(0, 0, 10)),
            ("mask_test", &mask.narrow(0, 0, 10)),
            ("y_test", &y.narrow(0, 0, 10)),
        ],
    );
    let flags = "--model masked.pt2 --loss cross-entropy --data d.safetensors";
    let judged = trained(folder, flags);
    assert_eq!(judged["count"], 10);
    assert!(judged["accuracy"].is_number(), "{judged}");
    let train = format!("train --batch 8 --steps 1 --quiet {flags}");
    let scaled = format!("{train} --normalise standard");
    fails(
        folder,
        &scaled,
        2,
        &["--normalise standard is for samples of one input"],
    );
    arrays(folder, "d.safetensors", &[("numbers", &x), ("mask", &mask)]);
    fails(
        folder,
        &train,
        2,
        &["called `numbers`, `mask`, `y`; there are `mask`, `numbers`"],
    );
}

/// A micro-batch of one sample ended training, and the profile, with libtorch's error.
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

#[test]
fn more_classes_than_a_program_tells_are_refused_with_what_to_do() {
    let folder = folder(&["mlp"]);
    let folder = folder.path();
    let rows: String = (0..40)
        .map(|at| format!("{at},2,3,4,5,6,7,8,k{}\n", at % 5))
        .collect();
    fs::write(
        folder.join("d.csv"),
        format!("a,b,c,d,e,f,g,h,kind\n{rows}"),
    )
    .unwrap();
    let train = "train --model mlp.pt2 --data d.csv --batch 8 --steps 1 --quiet";
    let wrong = ["there are 5 classes", "tells 3", "an output of 5 classes"];
    fails(folder, &format!("{train} --loss cross-entropy"), 2, &wrong);
    let wrong = [
        "line 2",
        "column `kind`: `k0` is no number: this model learns numbers",
    ];
    fails(folder, &format!("{train} --loss mse"), 2, &wrong);
}

/// The hint was one for `gpt` and `llama`.
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
    // Without a step in between they are the same weights.
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
        // Statistics of batches move without a learning rate.
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
