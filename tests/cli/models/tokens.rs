//! Files of tokens as training data.

use super::{as_json, config, gpipe, losses, printed};

use std::fs;
use std::path::Path;

use gpipe::data::{TextSet, Tokens};

const TEXT: &str = "the whale, the whale! up helm, up helm! ";
const LSTM: &str =
    "--model lstm --layers 2 --hidden 16 --context 6 --batch 4 --threads-per-stage 1";

/// The flags of a short run with this data.
fn flags<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
    let mut args = vec![
        "train", "--quiet", "--steps", "3", "--data", data, "--out", out,
    ];
    args.extend(LSTM.split_whitespace());
    args
}

/// The text and the tokens of its characters.
fn write(folder: &Path) {
    let text = TEXT.repeat(60);
    let set = TextSet::new(&text);
    let tokens: Vec<u32> = set
        .encode(&text)
        .unwrap()
        .iter()
        .map(|&one| one as u32)
        .collect();
    fs::write(folder.join("text.txt"), text).unwrap();
    Tokens::write(&folder.join("tokens.bin"), &tokens, set.vocabulary().len()).unwrap();
}

#[test]
fn a_file_of_a_texts_tokens_trains_as_the_text_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder);
    let text = as_json(folder, &flags("text.txt", "1"));
    let tokens = as_json(folder, &flags("tokens.bin", "2"));
    assert_eq!(losses(folder, "1"), losses(folder, "2"));
    assert_eq!(text["held_out_loss"], tokens["held_out_loss"]);
    assert!(tokens["held_out_loss"].is_number());
    assert_eq!(tokens["data"], "tokens.bin");
    assert_eq!(config(folder, "1")["model"], config(folder, "2")["model"]);
    let mut flags_of_a_loud_run = flags("tokens.bin", "3");
    flags_of_a_loud_run.retain(|&flag| flag != "--quiet");
    let told = printed(folder, &flags_of_a_loud_run);
    assert!(told.contains("per token"), "{told}");
    assert!(told.starts_with("\nloss "), "no sample: {told}");
    let mut profile = vec!["profile", "--quick", "--data", "tokens.bin"];
    profile.extend(LSTM.split_whitespace());
    assert_eq!(as_json(folder, &profile)["input"]["data"], "tokens.bin");
}

#[test]
fn what_is_wrong_with_a_file_of_tokens_is_told_before_anything_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder);
    fs::write(folder.join("bare.bin"), [0; 20]).unwrap();
    fs::write(folder.join("odd.u16.bin"), [0; 21]).unwrap();
    fs::write(folder.join("short.u16.bin"), [0; 20]).unwrap();
    let cases: [(&str, &[&str], &[&str]); 5] = [
        (
            "none.bin",
            &[],
            &["--data", "cannot read none.bin: No such file"],
        ),
        ("bare.bin", &[], &["bare.u16.bin", "bare.bin.json"]),
        (
            "odd.u16.bin",
            &[],
            &["odd.u16.bin, byte 20", "1 of a token's 2 bytes"],
        ),
        (
            "short.u16.bin",
            &[],
            &["the file of tokens is too short", "10 tokens", "70"],
        ),
        (
            "tokens.bin",
            &["--vocab", "5"],
            &["12 distinct tokens", "--vocab 12"],
        ),
    ];
    for (data, more, parts) in cases {
        let output = gpipe(folder, &[&flags(data, "run")[..], more].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{data}: {errors}");
        for part in parts {
            assert!(
                errors.contains(part),
                "{data}: {part:?} is not in: {errors}"
            );
        }
        assert!(!folder.join("run").exists());
    }
}
