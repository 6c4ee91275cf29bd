//! An MLP on a table.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gpipe::tch::{Device, Kind, Tensor};
use serde_json::json;

use super::{as_json, config, fails, printed, trained};
use crate::run::{gpipe, succeeded};

/// Eighty rows of three classes that depend on two columns.
fn table(folder: &Path) {
    let mut text = String::from("kind,height,weight\n");
    for row in 0..80 {
        let (height, weight) = (row % 9, row % 7);
        let kind = ["small", "tall", "heavy"][usize::from(height > 4) + usize::from(weight > 5)];
        writeln!(text, "{kind},{height}.5,{weight}e2").unwrap();
    }
    fs::write(folder.join("table.csv"), text).unwrap();
}

const MLP: &str = "--model mlp --hidden 8 --depth 2 --data table.csv --target kind";

#[test]
fn an_mlp_on_a_table_is_trained_resumed_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let judged = trained(folder, MLP);
    assert_eq!(judged["count"], 8);
    assert!(judged["accuracy"].is_number(), "{judged}");
    let own = config(folder, "whole");
    assert_eq!(own["model"]["inputs"].as_integer(), Some(2));
    assert_eq!(own["model"]["outputs"].as_integer(), Some(3));
    assert_eq!(own["data"]["target"].as_str(), Some("kind"));
    // The configuration alone reproduces the run.
    printed(
        folder,
        "train --quiet --config whole/config.toml --out again",
    );
    assert_eq!(
        super::losses(folder, "again"),
        super::losses(folder, "whole")
    );
    let lines = printed(folder, "eval --run whole");
    assert!(
        lines.contains("(8 samples, held out)") && lines.contains("accuracy"),
        "{lines}"
    );
}

#[test]
fn another_table_is_judged_by_the_classes_and_scales_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = "train --quiet --steps 2 --batch 8 --out run --held-out 0";
    let told = as_json(folder, &format!("{train} --json {MLP}"));
    assert_eq!(told["held_out_loss"], json!(null));
    fails(
        folder,
        "eval --run run",
        2,
        &["nothing of it was held out", "--data PATH"],
    );
    let text = fs::read_to_string(folder.join("table.csv")).unwrap();
    let all = as_json(folder, "eval --run run --json --data table.csv");
    assert_eq!(all["count"], 80);
    // The same rows in reverse order, with reordered columns.
    let rows = text.lines().skip(1).map(|row| {
        let cells: Vec<&str> = row.split(',').collect();
        format!("{},{},{}\n", cells[2], cells[0], cells[1])
    });
    fs::write(
        folder.join("b.csv"),
        format!("weight,kind,height\n{}", rows.collect::<String>()),
    )
    .unwrap();
    let other = as_json(folder, "eval --run run --json --data b.csv");
    assert_eq!(
        (&other["loss"], &other["accuracy"]),
        (&all["loss"], &all["accuracy"])
    );
    // A run's data must not change after training.
    fs::write(folder.join("table.csv"), text.replace("8.5", "8.25")).unwrap();
    fails(folder, "eval --run run", 2, &["table.csv", "other data"]);
    fails(
        folder,
        "train --quiet --resume run --steps 4",
        1,
        &["the data, the seed and the sizes"],
    );
}

#[test]
fn a_profile_has_the_sizes_of_the_table_and_its_plan_trains() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let profile = format!("profile --quick --json --batch 8 --plan plan.json {MLP}");
    let told = as_json(folder, &profile);
    assert_eq!(told["input"]["data"], "table.csv");
    let train =
        format!("train --quiet --json --steps 2 --batch 8 --plan plan.json --out run {MLP}");
    as_json(folder, &train);
    assert_eq!(
        config(folder, "run")["model"]["outputs"].as_integer(),
        Some(3)
    );
}

/// Regression test: a plan for batches of 32 was silently used with 30 samples, and its times compared with
/// theirs.
#[test]
fn a_plan_for_another_mini_batch_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let profile = format!("profile --quick --batch 32 --micro 8 -o p.json --plan plan.json {MLP}");
    printed(folder, &profile);
    let plan = fs::read_to_string(folder.join("plan.json")).unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["batch"], 32);
    let run = |batch: usize| {
        fs::remove_dir_all(folder.join("run")).ok();
        let args = format!("train --steps 1 --plan plan.json {MLP} --batch {batch} --out run");
        succeeded(gpipe(folder, &args), &args).1.replace('\n', " ")
    };
    let wanted = "note: the plan is for mini-batches of 32 samples, and --batch 30 makes a last micro-batch \
                  of another size";
    let said = run(30);
    assert!(said.contains(wanted), "{said}");
    assert!(!run(32).contains("the plan is for"));
    // A plan for batches of 30 does not fit 32.
    printed(
        folder,
        "plan --profile p.json --devices 2 --batch 30 --micro 8 -o plan.json",
    );
    assert!(!run(30).contains("the plan is for"));
}

#[test]
fn what_does_not_fit_is_told_before_anything_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = |flags: &str| format!("train --quiet --out run {flags}");
    let refused = |flags: &str, wanted: &[&str]| fails(folder, &train(flags), 2, wanted);
    refused(
        &MLP.replace("kind", "colour"),
        &["--data: table.csv, line 1", "no column `colour`"],
    );
    refused(
        &format!("{MLP} --outputs 2"),
        &["3 classes", "`mlp` tells 2", "use --outputs 3"],
    );
    refused(
        &format!("{MLP} --inputs 5"),
        &["shape [2]", "[5] is needed"],
    );
    refused(
        &format!("{MLP} --batch 80 --micro 2"),
        &["--batch 80", "the 72 samples to train on", "smaller"],
    );
    refused(
        &format!("{MLP} --held-out 3"),
        &["from 0 to below 1", "--held-out-batches"],
    );
    refused(
        &format!("{MLP} --normalise much"),
        &["standard", "imagenet"],
    );
    refused(
        "--model resnet50 --data table.csv --target kind",
        &["shape [2]", "`resnet50` takes"],
    );
    refused(
        "--model mlp --data none.csv",
        &["--data", "none.csv", "No such file"],
    );
    fs::write(folder.join("table.csv"), "a,b\n1,2\n,3\n").unwrap();
    refused(
        "--model mlp --data table.csv",
        &["table.csv, line 3", "column `a` has no value"],
    );
    // For a missing cell the message must not suggest quotes, which help with surplus cells.
    for (row, wanted) in [
        (
            "1",
            "line 3: there is 1 cell, but the header has 2: add what is missing",
        ),
        (
            "1,2,3",
            "line 3: there are 3 cells, but the header has 2: put cells with the separator",
        ),
    ] {
        fs::write(folder.join("table.csv"), format!("a,b\n1,2\n{row}\n")).unwrap();
        refused("--model mlp --data table.csv", &[wanted]);
    }
    assert!(!folder.join("run").exists());
}

/// Regression test: the text after the quote became one more class, and the rows were lost silently.
#[test]
fn a_quote_that_is_never_closed_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let row = |n: usize| format!("{n},{},{}\n", n % 7, ["red", "blue"][n % 2]);
    let rows: Vec<String> = (0..60).map(row).collect();
    let train = "train --model mlp --hidden 8 --batch 8 --steps 2 --quiet --data table.csv";
    for column in [0, 2] {
        let mut bad = rows.clone();
        let mut cells: Vec<String> = bad[30].split(',').map(str::to_owned).collect();
        cells[column] = format!("\"{}", cells[column]);
        bad[30] = cells.join(",");
        fs::write(
            folder.join("table.csv"),
            format!("a,b,kind\n{}", bad.concat()),
        )
        .unwrap();
        let wanted = ["table.csv, line 32: a double quote is opened here and never closed"];
        fails(folder, &format!("{train} --out run"), 2, &wanted);
    }
    // Closed quotes, and quotes within a cell, are accepted.
    let good = format!("a,b,kind\n{}61,1,\"red\"\n62,2,bl\"ue\n", rows.concat());
    fs::write(folder.join("table.csv"), good).unwrap();
    printed(folder, &format!("{train} --out run"));
}

/// Regression test: such targets trained to a loss of 0.
#[test]
fn targets_that_are_all_the_same_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut text = String::from("a,b,y\n");
    (0..40).for_each(|row| writeln!(text, "{row},{},cat", row % 5).unwrap());
    fs::write(folder.join("d.csv"), text).unwrap();
    let train = "train --model mlp --batch 8 --steps 2 --out run --data";
    let wanted = [
        "--data d.csv: column `y` is `cat` in all 40 rows: there is nothing to tell apart; name the \
         column of the classes with --target",
    ];
    fails(folder, &format!("{train} d.csv"), 2, &wanted);
    let x = Tensor::arange(40, (Kind::Float, Device::Cpu)).view([20, 2]);
    let y = Tensor::full([20], 3, (Kind::Int64, Device::Cpu));
    Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("d.safetensors")).unwrap();
    for classes in ["", " --outputs 5"] {
        let wanted = ["the targets of all 20 samples are 3: there is nothing to tell apart"];
        fails(
            folder,
            &format!("{train} d.safetensors{classes}"),
            2,
            &wanted,
        );
    }
}

/// Regression test: the default model `gpt` only said that it takes 64 tokens.
#[test]
fn data_that_is_none_for_the_model_is_told_with_the_command_that_trains_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let x = Tensor::arange(80, (Kind::Float, Device::Cpu)).view([20, 4]);
    let whole = Tensor::arange(20, (Kind::Int64, Device::Cpu)).remainder(3);
    let real = Tensor::arange(20, (Kind::Float, Device::Cpu)) * 0.25;
    for (name, y) in [("classes", &whole), ("numbers", &real)] {
        let path = folder.join(format!("{name}.safetensors"));
        Tensor::write_safetensors(&[("x", &x), ("y", y)], path).unwrap();
    }
    let fits = |args: &str, model: &str, data: &str| {
        let command = format!("; for this data: `gpipe-rs train --model {model} --data {data}`");
        fails(
            folder,
            &format!("train {args} --data {data}"),
            2,
            &[&command],
        );
        let flags = format!("--model {model} --data {data} --batch 8 --steps 1");
        printed(folder, &format!("train --quiet {flags}"));
    };
    fits("", "mlp --hidden 64 --depth 3", "classes.safetensors");
    fits(
        "",
        "mlp --hidden 64 --depth 3 --loss mse",
        "numbers.safetensors",
    );
    fs::copy(folder.join("table.csv"), folder.join("t.csv")).unwrap();
    let text = fs::read_to_string(folder.join("t.csv")).unwrap();
    let rows = text.lines().map(|line| {
        let (kind, numbers) = line.split_once(',').unwrap();
        format!("{numbers},{kind}\n")
    });
    fs::write(folder.join("t.csv"), rows.collect::<String>()).unwrap();
    fits("--model resnet50", "mlp --hidden 64 --depth 3", "t.csv");
}

/// Regression test: a text model was trained on the commas, and a text column was not reported. A mistaken
/// class was counted but not named, cells with other separators were one column, and there was no advice for
/// `1e39` and for texts.
#[test]
fn what_is_wrong_in_a_table_or_with_a_text_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |row: &str| format!("x,y,label\n{}{row}\n", "1,2,a\n3,4,b\n5,6,c\n".repeat(8));
    for (name, text) in [
        ("stray.csv", rows("1,2,-1")),
        ("large.csv", rows("1e39,2,a")),
        ("pipes.csv", rows("1,2,a").replace(',', "|")),
        ("text.txt", "once upon a time\n".repeat(40)),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    for (data, wanted) in [
        (
            "stray.csv --outputs 3",
            "there are 4 classes (`-1`, `a`, `b`, `c`), but `mlp` tells 3",
        ),
        (
            "large.csv",
            "line 26: column `x`: 1e39 is too large for single precision (at most 3.4e38)",
        ),
        ("pipes.csv", "here it seems to be `|`: write commas"),
        ("text.txt", "--model gpt is such a model"),
    ] {
        let args = format!("train --model mlp --steps 1 --data {data}");
        fails(folder.path(), &args, 2, &[wanted]);
    }
}

/// Regression test: `--patience 3` silently meant 3 seconds where early stopping was intended.
#[test]
fn patience_is_told_from_early_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let output = gpipe(folder.path(), "train --model mlp --steps 1 --patience 3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("write --early-stopping N"), "{errors}");
}

#[test]
fn a_table_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    let train = "train --steps 1 --data";
    let wanted = [
        "--data table.csv: this is a table, and `gpt` learns texts",
        "`gpipe-rs train --model mlp --hidden 64 --depth 3 --data table.csv --target COLUMN`",
        "call it .txt",
    ];
    fails(folder, &format!("{train} table.csv"), 2, &wanted);
    // Also for data that cannot be read directly.
    let days = (0..120).map(|row| format!("2026-{row},{row},{row}.5\n"));
    let days = format!("day,size,price\n{}", days.collect::<String>());
    fs::write(folder.join("days.csv"), days).unwrap();
    let wanted = [
        "days.csv: this is a table",
        "with --loss mse where it has numbers",
    ];
    fails(folder, &format!("{train} days.csv"), 2, &wanted);
    let wanted = ["`gpt` has a loss of its own", "--model mlp"];
    fails(folder, &format!("{train} days.csv --loss mse"), 2, &wanted);
    let small = "--layers 1 --d-model 16 --heads 1 --seq 16 --batch 4";
    fs::copy(folder.join("days.csv"), folder.join("days.txt")).unwrap();
    printed(folder, &format!("{train} days.txt --quiet {small}"));
}

#[test]
fn a_misspelt_file_is_answered_with_the_one_that_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder);
    fs::write(folder.join("text.txt"), "Call me Ishmael. ".repeat(100)).unwrap();
    fs::copy(folder.join("table.csv"), folder.join("iris.csv")).unwrap();
    for (args, wanted) in [
        ("train --data text.tx", "did you mean `text.txt`?"),
        (
            "train --model mlp --data tabel.csv",
            "did you mean `table.csv`?",
        ),
        (
            "train --data text.txt --eval-data text.tx",
            "did you mean `text.txt`?",
        ),
        ("train --data syntetic", "did you mean `synthetic`?"),
        // Regression test: the name of a downloadable data set hid the file.
        ("train --model mlp --data iris", "did you mean `iris.csv`?"),
        ("train --config table.cvs", "did you mean `table.csv`?"),
        ("train --plan table.cvs", "did you mean `table.csv`?"),
        (
            "plan --devices 2 --profile table.cvs",
            "did you mean `table.csv`?",
        ),
        ("train --weights text.tx", "did you mean `text.txt`?"),
        ("train --tokenizer text.tx", "did you mean `text.txt`?"),
    ] {
        fails(folder, args, 2, &[wanted]);
    }
}

/// Regression test: prices were treated as classes, no hint said that they are far from the outputs, and
/// prices with a comma were reported as text.
#[test]
fn numbers_are_no_classes_and_those_that_are_far_from_outputs_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let rows = (0..80).map(|row| format!("{row}.5,{}\n", 200_000 + 1_000 * row));
    let prices = format!("size,price\n{}", rows.collect::<String>());
    fs::write(folder.join("houses.csv"), &prices).unwrap();
    let train = "train --steps 1 --out run --model mlp --hidden 8 --depth 2 --data";
    let wanted = [
        "column `price` has 80 different numbers in 80 rows, too many to be classes",
        "`mlp` with --loss mse",
    ];
    fails(folder, &format!("{train} houses.csv"), 2, &wanted);
    let numbers = format!("{train} houses.csv --loss mse --normalise none");
    let (_, said) = succeeded(gpipe(folder, &numbers), &numbers);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = "`price` is about 239500 on average with a standard deviation of 23100, and outputs \
                begin near 0: models learn it faster as (`price` - 239500) / 23100";
    assert!(said.contains(note), "{said}");
    let rows = (0..80).map(|row| format!("{row}.5,{}\n", f64::from(row) / 40.0 - 1.0));
    let scaled = format!("size,price\n{}", rows.collect::<String>());
    fs::write(folder.join("scaled.csv"), scaled).unwrap();
    let numbers = format!("{train} scaled.csv --loss mse --normalise none")
        .replace("--out run", "--out near");
    let (_, said) = succeeded(gpipe(folder, &numbers), &numbers);
    assert!(!said.contains("on average"), "{said}");
    fs::write(folder.join("comma.csv"), "size;price\n1,5;2\n2;1\n").unwrap();
    let wanted = ["line 2", "`1,5` has a comma: write `1.5`"];
    let comma = format!("{train} comma.csv --loss mse").replace("--out run", "--out comma");
    fails(folder, &comma, 2, &wanted);
}
