//! `gpipe-rs eval`: the loss on text that was not trained on.

use std::fs;

use gpipe::checkpoint::{Checkpoint, Extras};
use gpipe::data::{Split, TextSet, Tokens};
use gpipe::{Optimizer, optim::AdamW};
use serde_json::Value;

use super::trained::{TEXT, checkpoints, config, copy, held_out_loss, pipeline, run, save};
use super::{printed, refused};
use crate::run::gpipe;

fn eval(flags: &str) -> Value {
    let text = printed(run(), &format!("eval --run run --json {flags}"));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_held_out_loss_is_the_one_of_training_to_the_last_bit() {
    let checkpoint = Checkpoint::newest(checkpoints(&run().join("run"))).unwrap();
    let loss = held_out_loss(&checkpoint.weights().unwrap());
    for devices in ["cpu", "cpu,cpu,cpu"] {
        let told = eval(&format!("--devices {devices}"));
        assert_eq!(told["loss"].as_f64(), Some(loss), "{devices}");
        assert_eq!(told["perplexity"].as_f64(), Some(loss.exp()));
        let bits = told["bits"].as_f64().unwrap();
        assert!((bits - loss.exp().log2()).abs() < 1e-12);
        assert_eq!(
            (&told["step"], &told["unit"]),
            (&120.into(), &"character".into())
        );
        // 102 characters are held out: 6 sequences and the target after the last.
        assert_eq!(told["count"], 6 * 16);
    }
    let lines = printed(run(), "eval --run run");
    let wanted = format!("loss        {loss:.4} per character\n");
    assert!(lines.contains(&wanted), "{lines}");
    assert!(lines.contains("characters, held out)") && lines.contains("of step 120"));
}

/// Regression test: the loss on training data was reported like one on new data.
#[test]
fn a_loss_on_what_was_trained_on_says_so() {
    let said = |data: &str| {
        let output = gpipe(run(), &format!("eval --run run --data {data}"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let note = "note: the model was trained on text.txt: ";
    assert!(said("text.txt").contains(note), "{}", said("text.txt"));
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.txt");
    fs::write(&other, TEXT).unwrap();
    assert!(!said(other.to_str().unwrap()).contains("note:"));
}

#[test]
fn all_of_another_text_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.txt");
    let shown = file.display().to_string();
    let of = |text: &str| {
        fs::write(&file, text).unwrap();
        eval(&format!("--data {shown}"))
    };
    let known = of(&TEXT.repeat(3));
    assert_eq!(known["count"], TEXT.len() * 3 - 1);
    assert_eq!(known["data"], shown);
    let backwards: String = TEXT.repeat(3).chars().rev().collect();
    let odd = of(&backwards);
    let loss = |told: &Value| told["loss"].as_f64().unwrap();
    assert!(loss(&odd) > 5.0 * loss(&known), "{odd} {known}");
    assert_eq!(of("me")["count"], 1);
    assert!(printed(run(), &format!("eval --run run --data {shown}")).contains("(1 character)"));
    for (text, wanted) in [
        ("m", "it is too short"),
        ("", "it is too short"),
        ("Call\n", "does not know '\\n' (line 1, character 5)"),
    ] {
        fs::write(&file, text).unwrap();
        refused(
            run(),
            &format!("eval --run run --data {shown}"),
            &["--data ", wanted],
        );
    }
    refused(
        run(),
        "eval --run run --data nowhere.txt",
        &["--data nowhere.txt: cannot be read"],
    );
    let of_texts = folder.path().display().to_string();
    refused(
        run(),
        &format!("eval --run run --data {of_texts}"),
        &["this is a folder: this model is judged by one text (UTF-8)"],
    );
}

/// The held-out part of a changed text is no valid measure.
#[test]
fn a_text_that_changed_is_not_what_was_held_out() {
    let folder = copy();
    let (file, shown) = (folder.path().join("text.txt"), "text.txt");
    fs::write(&file, TEXT.repeat(60)).unwrap();
    let set = TextSet::read(&file).unwrap();
    let characters: String = set.vocabulary().iter().collect();
    let extras = Extras::new(121)
        .config(config(shown))
        .part("vocabulary", characters);
    let optimizer = Optimizer::new(AdamW::default());
    save(
        &folder.path().join("run"),
        &mut pipeline(),
        &optimizer,
        extras,
    );
    printed(folder.path(), "eval --run run");
    fs::write(&file, TEXT.repeat(60) + "?").unwrap();
    refused(
        folder.path(),
        "eval --run run",
        &["another text", "--data FILE"],
    );
    fs::write(&file, "Call me Ishmael!").unwrap();
    refused(
        folder.path(),
        "eval --run run",
        &["shorter than a sequence"],
    );
}

#[test]
fn files_of_tokens_are_judged_by_tokens() {
    let folder = copy();
    let set = TextSet::new(&TEXT.repeat(60));
    let all = [Split::Train, Split::HeldOut]
        .map(|split| set.part(split))
        .concat();
    let file = folder.path().join("own.bin");
    Tokens::write(&file, &all, set.vocabulary().len()).unwrap();
    let extras = Extras::new(120).config(config(&file.display().to_string()));
    let run_folder = folder.path().join("run");
    let newest = Checkpoint::newest(checkpoints(&run_folder)).unwrap();
    let (mut pipe, mut optimizer) = (pipeline(), Optimizer::new(AdamW::default()));
    newest.restore(&mut pipe, &mut optimizer).unwrap();
    save(&run_folder, &mut pipe, &optimizer, extras);
    let told = printed(folder.path(), "eval --run run --json");
    let told: Value = serde_json::from_str(&told).unwrap();
    // The same tokens as in the text.
    let of_text = eval("");
    assert_eq!(
        (&told["loss"], &told["count"]),
        (&of_text["loss"], &of_text["count"])
    );
    assert_eq!(told["unit"], "token");
    let whole = printed(folder.path(), "eval --run run --data own.bin");
    let count = all.len() - 1;
    assert!(
        whole.contains(&format!("({},{:03} tokens)", count / 1000, count % 1000)),
        "{whole}"
    );
    Tokens::write(&file, &[1, 2, 99], 100).unwrap();
    let wanted = ["--data own.bin: its tokens go up to 99, but the model knows 14"];
    refused(folder.path(), "eval --run run --data own.bin", &wanted);
    let wanted = ["what tokens stand for is not known: it was trained on a file of tokens"];
    refused(folder.path(), "generate --run run --prompt C", &wanted);
}
