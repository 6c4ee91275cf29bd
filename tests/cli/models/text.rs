//! Default data of models.

use super::{as_json, config, printed};

use std::fs;
use std::path::Path;

const TEXT: &str = "the whale, the whale! up helm, up helm! ";
const LSTM: &str =
    "--model lstm --layers 2 --hidden 16 --context 6 --batch 4 --threads-per-stage 1";

/// Trains an lstm for two steps; returns its data and its vocabulary.
fn lstm(folder: &Path, out: &str, flags: &[&str]) -> (String, i64) {
    let mut args = vec!["train", "--quiet", "--steps", "2", "--out", out];
    args.extend(LSTM.split_whitespace());
    let summary = as_json(folder, &[&args[..], flags].concat());
    let data = summary["data"].as_str().unwrap().to_owned();
    let is_text = data != "synthetic";
    assert_eq!(summary.get("held_out_loss").is_some(), is_text);
    assert!(summary["tokens_per_s"].as_f64().unwrap() > 0.0);
    let config = config(folder, out);
    let path = config["data"]["path"].as_str().unwrap();
    let here = folder.join(&data).to_str().unwrap().to_owned();
    assert_eq!(path, if is_text { &here } else { &data });
    (data, config["model"]["vocab"].as_integer().unwrap())
}

#[test]
fn a_model_of_tokens_has_the_texts_vocabulary_unless_another_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("text.txt"), TEXT.repeat(60)).unwrap();
    let characters = 12;
    let case = |out: &str, flags: &[&str]| lstm(folder, out, flags);
    let text = |vocab| ("text.txt".to_owned(), vocab);
    let synthetic = |vocab| ("synthetic".to_owned(), vocab);
    assert_eq!(case("1", &["--data", "text.txt"]), text(characters));
    assert_eq!(
        case("2", &["--data", "text.txt", "--vocab", "20"]),
        text(20)
    );
    assert_eq!(case("3", &["--data", "synthetic"]), synthetic(256));
    // Too small for the built-in text, which nobody requested.
    assert_eq!(case("4", &["--vocab", "20"]), synthetic(20));
    // The preset's own vocabulary.
    let preset = ["--model", "lstm-medium", "--data", "text.txt"];
    let shrink = ["--layers", "2", "--hidden", "16", "--context", "6"];
    let run = ["--steps", "1", "--batch", "4", "--quiet", "--out", "5"];
    as_json(folder, &[&["train"], &preset[..], &shrink, &run].concat());
    assert_eq!(
        config(folder, "5")["model"]["vocab"].as_integer(),
        Some(10_000)
    );
}

#[test]
fn a_run_on_made_up_data_says_so_and_has_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let args = "train --model mlp --inputs 8 --hidden 8 --depth 2 --steps 3 --batch 4";
    let args: Vec<&str> = args.split_whitespace().collect();
    let text = printed(folder.path(), &args);
    assert!(text.starts_with("\nloss "), "{text}");
    let long = &[&args[..], &["--out", "long", "--report", "page.html"]].concat();
    let long = printed(folder.path(), long);
    assert!(long.contains("\nStep 3 took "), "{long}");
    assert!(
        text.contains(" samples/s over ") && !text.contains("tokens/s"),
        "{text}"
    );
    assert!(!text.contains("held-out"), "{text}");
    // Regression test: the loss of a quiet run was not recognized as meaningless.
    for quiet in [&[][..], &["--quiet"]] {
        let errors = super::gpipe(folder.path(), &[&args[..], quiet].concat()).stderr;
        let errors = String::from_utf8(errors).unwrap();
        assert!(
            errors.contains(
                "data: made up once from the model's shapes, as the built-in text does not fit"
            ),
            "{errors}"
        );
    }
}

#[test]
fn profile_measures_the_loader_of_the_data_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), TEXT.repeat(60)).unwrap();
    for data in ["text.txt", "synthetic"] {
        let mut args = vec!["profile", "--quick", "--data", data];
        args.extend(LSTM.split_whitespace());
        let report = as_json(folder.path(), &args);
        assert_eq!(report["input"]["data"], data);
        assert_eq!(report["input"]["batch"], 4);
        assert!(report["input"]["batch_us"].as_f64().unwrap() > 0.0);
        let text = printed(folder.path(), &args);
        assert!(
            text.contains(&format!(" for 4 samples from {data}\n")),
            "{text}"
        );
    }
}
