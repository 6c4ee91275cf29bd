//! Targets of programs: classes, shares, and ignored targets.

use std::fs;

use super::{arrays, floats, folder, rows, whole};
use crate::run::losses;
use crate::samples::{as_json, fails, printed, trained};

/// libtorch does not check them, and a GPU would end the program.
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
    let rows = rows(32, |at| format!("{at},{}\n", at % 3));
    fs::write(folder.join("d.csv"), format!("a,b\n{rows}")).unwrap();
    let wrong = ["d.csv, line", "a target is 2"];
    fails(
        folder,
        &format!("{train} --model mlp --hidden 4 --data d.csv"),
        1,
        &wrong,
    );
}

/// Regression test: -100 was an error without a flag, and any other number with one.
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
    fails(folder, train, 2, &other);
    let y = y.masked_fill(&y.eq(1), 255);
    arrays(folder, "d.safetensors", &[("x", &x), ("y", &y)]);
    fails(
        folder,
        train,
        2,
        &[
            "label 255 is out of the range 0 to 2",
            "3 classes",
            "--ignore-index 255",
        ],
    );
}

/// Regression test: classes were expected in the last dimension only.
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
    // The other order works as well, if the targets agree.
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

#[test]
fn more_classes_than_a_program_tells_are_refused_with_what_to_do() {
    let folder = folder(&["mlp"]);
    let folder = folder.path();
    let rows = rows(40, |at| format!("{at},2,3,4,5,6,7,8,k{}\n", at % 5));
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
