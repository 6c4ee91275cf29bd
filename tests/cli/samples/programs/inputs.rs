//! Inputs of programs: integers, several inputs, and targets among them.

use std::fs;

use gpipe::tch::{Device, Kind, Tensor};

use super::{arrays, floats, folder, rows, whole};
use crate::samples::{as_json, config, fails, printed, trained};

/// Regression test: the features were treated as tokens, of which two were known.
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
    // The program does not treat a table as texts.
    let rows = rows(40, |at| {
        format!("{},{at},-1,9,{}\n", at as i64 - 20, at % 3)
    });
    fs::write(folder.join("d.csv"), format!("a,b,c,d,kind\n{rows}")).unwrap();
    let train = "train --model counts.pt2 --loss cross-entropy --batch 8 --steps 1 --quiet";
    printed(folder, &format!("{train} --data d.csv"));
    // Without data it uses synthetic data, not Moby-Dick.
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

/// Regression test: programs with their own loss accepted no data.
#[test]
fn a_program_with_its_own_loss_takes_its_inputs_by_name_or_order() {
    let folder = folder(&["judged", "triplet", "coder"]);
    let folder = folder.path();
    arrays(
        folder,
        "d.safetensors",
        &[("x", &floats(&[44, 8])), ("y", &whole(&[44], 3))],
    );
    // Four are held out, in two micro-batches of the evaluation.
    trained(folder, "--model judged.pt2 --data d.safetensors");
    assert_eq!(
        config(folder, "whole")["loss"]["name"].as_str(),
        Some("output")
    );
    let rows = rows(30, |at| {
        format!("{at},2,3,4,5,6,7,8,{}\n", ["a", "b"][at % 2])
    });
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
        "the model takes 0 to 5 there",
        "for at most N such samples",
    ];
    let train = "train --batch 8 --steps 9 --quiet --held-out 0";
    fails(
        folder,
        &format!("{train} --model triplet.pt2 --data three.safetensors"),
        1,
        &wrong,
    );
    // Regression test: the message said to replace the file.
    fails(
        folder,
        &format!("{train} --model triplet.pt2 --data three.safetensors --set checkpoint.every=0"),
        1,
        &[
            "; mend the sample, or leave it out with --set data.skip_bad=N for at most N such samples",
        ],
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

/// Micro-batch losses are weighted by the number of samples.
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
    // Regression test: the error came in the middle of a run, whose folder was already there.
    let odd = y.masked_fill(&y.eq(2), 7);
    let all = [("numbers", &x), ("mask", &mask), ("y", &odd)];
    arrays(folder, "d.safetensors", &all);
    let wrong = ["`y`: a target is 7", "the model's classes are 0 to 2"];
    fails(folder, &format!("{train} --out odd"), 2, &wrong);
    assert!(!folder.join("odd").exists());
    arrays(folder, "d.safetensors", &[("numbers", &x), ("mask", &mask)]);
    fails(
        folder,
        &train,
        2,
        &["called `numbers`, `mask`, `y`; there are `mask`, `numbers`"],
    );
}
