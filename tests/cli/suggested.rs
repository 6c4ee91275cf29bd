//! Commands that the program suggests must work as printed.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::Value;

use crate::run::{config, gpipe, printed};

fn text(folder: &Path) {
    let words = ["the whale ", "ate the hat. ", "let it heat. "];
    let text: String = (0..160).map(|at| words[at * at % 7 % 3]).collect();
    fs::write(folder.join("text.txt"), text).unwrap();
}

/// The first command in the entry of this title, without the program's name.
#[track_caller]
fn suggested(printed: &str, title: &str) -> String {
    let at = printed.rfind(&format!("\n{title} ")).expect(title);
    let line = printed[at..]
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let command = line.split('`').nth(1).expect("a command");
    let (program, args) = command.split_once(' ').unwrap();
    assert!(program.ends_with("gpipe-rs"), "{command}");
    args.to_owned()
}

/// Standard error of a refused command.
#[track_caller]
fn refused(folder: &Path, args: &str) -> String {
    let output = gpipe(folder, args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
    errors
}

/// Regression test: the model and the table's sizes had to be repeated, and no message said so.
#[test]
fn a_plan_is_trained_by_the_command_that_profile_suggests() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut rows = String::from("a,b,kind\n");
    for row in 0..80 {
        writeln!(rows, "{},{},{}", row % 9, row % 7, row % 3).unwrap();
    }
    fs::write(folder.join("table.csv"), rows).unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exported/mlp.pt2");
    fs::copy(program, folder.join("own.pt2")).unwrap();
    for (at, of) in [
        "--model mlp --data table.csv --target kind --batch 8",
        "--model gpt --layers 1 --d-model 16 --heads 2 --context 16 --batch 4",
        "--model own.pt2 --loss mse --batch 8 --precision bf16",
    ]
    .into_iter()
    .enumerate()
    {
        let said = printed(folder, &format!("profile --quick --plan plan.json {of}"));
        let next = suggested(&said, "next");
        let run = format!("run{at}");
        printed(folder, &format!("{next} --steps 1 --quiet --out {run}"));
        let plan: Value =
            serde_json::from_slice(&fs::read(folder.join("plan.json")).unwrap()).unwrap();
        let own = config(folder, &run);
        assert_eq!(own["train"]["batch"].as_integer(), plan["batch"].as_i64());
    }
    assert_eq!(
        config(folder, "run1")["model"]["d_model"].as_integer(),
        Some(16)
    );
    // An explicit model that differs from the plan's is refused.
    let errors = refused(folder, "train --plan plan.json --model lstm");
    assert!(errors.contains("it is for the model"), "{errors}");
}

/// Writes the exported program `decoder`, changed to take two samples or more, as with `Dim.AUTO`.
fn write_of_two(path: &Path) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exported/decoder.pt2");
    let mut from = zip::ZipArchive::new(fs::File::open(program).unwrap()).unwrap();
    let mut to = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let stored =
        zip::write::FileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for at in 0..from.len() {
        let mut entry = from.by_index(at).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if entry.name().ends_with("models/model.json") {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains("\"min_val\": 1, \"max_val\": 4096"));
            let text = text.replace(
                "\"min_val\": 1, \"max_val\": 4096",
                "\"min_val\": 2, \"max_val\": 4096",
            );
            bytes = text.into_bytes();
        }
        to.start_file(entry.name(), stored).unwrap();
        to.write_all(&bytes).unwrap();
    }
    to.finish().unwrap();
}

/// Regression test: one sample is too few for such a program, and `generate` suggested other micro-batches.
#[test]
fn a_program_of_two_samples_or_more_generates() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder);
    write_of_two(&folder.join("two.pt2"));
    let train = "train --model two.pt2 --loss cross-entropy --data text.txt --batch 8 --micro 4 --lr 0.01 \
                 --steps 40 --out run";
    let said = printed(folder, train);
    assert!(said.contains("and the model goes on with"), "{said}");
    let next = suggested(&said, "next").replace("TEXT", "the");
    printed(folder, &format!("{next} --tokens 5"));
}

/// Regression test: a run with a tokenizer was told only how to resume.
#[test]
fn a_model_with_a_tokenizer_is_said_to_generate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder);
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face/speaking/gpt2");
    let weights = weights.display();
    let train = format!("train --weights {weights} --data text.txt --batch 4 --steps 2 --out run");
    let next = suggested(&printed(folder, &train), "next").replace("TEXT", "the");
    assert!(next.starts_with("generate"), "{next}");
    printed(folder, &format!("{next} --tokens 3"));
}

/// Regression test: the suggested flags cannot be used to resume a run.
#[test]
fn other_data_than_a_runs_makes_a_new_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder);
    let small = "--layers 1 --d-model 16 --heads 2 --context 16 --batch 4 --quiet";
    printed(folder, &format!("train --steps 1 --out run {small}"));
    for data in ["text.txt", "synthetic"] {
        let errors = refused(
            folder,
            &format!("train --resume run --steps 2 --data {data}"),
        );
        let wanted = "the run was trained on the built-in text, and goes on with that alone: leave --data out";
        assert!(errors.contains(wanted), "{errors}");
    }
    printed(folder, "train --resume run --steps 2 --quiet");
}

/// Regression test: the name that `models` lists was refused beside the weights of that name.
#[test]
fn weights_may_be_named_by_their_preset() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder);
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face/speaking/gpt2");
    let train = format!(
        "train --weights {} --data text.txt --batch 4 --steps 1 --model",
        weights.display()
    );
    let errors = refused(folder, &format!("{train} gpt2"));
    // The fixture's sizes differ from those of the named preset.
    assert!(
        errors.contains("leave --model out, as the weights decide the model"),
        "{errors}"
    );
    let errors = refused(folder, &format!("{train} lstm"));
    assert!(
        errors.contains("leave it out, as the weights decide the model"),
        "{errors}"
    );
}

/// Regression test: the smallest micro-batches gave a batch norm a single value, and nothing was written.
#[test]
fn micro_batches_that_a_batch_norm_takes_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let profile = "profile --model resnet50 --image 32 --batch 4 --quick --plan plan.json";
    let next = suggested(&printed(folder, profile), "next");
    assert_eq!(next, "train --plan plan.json");
}
