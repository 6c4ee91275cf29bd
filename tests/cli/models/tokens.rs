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

/// A token of 50.
fn squared(place: u16) -> u16 {
    (u32::from(place).pow(2) % 50) as u16
}

/// Regression test: the message was `there is nothing in this folder to train on`, with a list of kinds that
/// left out tokens.
#[test]
fn a_folder_of_nano_gpt_is_trained_on_and_its_second_file_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let save = |name: &str, tokens: std::ops::Range<u16>| {
        let bytes = tokens.flat_map(|own| squared(own).to_le_bytes());
        fs::write(folder.join(name), bytes.collect::<Vec<u8>>()).unwrap();
    };
    fs::create_dir(folder.join("nano")).unwrap();
    save("nano/train.bin", 0..200);
    save("nano/val.bin", 200..240);
    fs::write(folder.join("nano/meta.pkl"), b"\x80\x04").unwrap();
    let own = as_json(folder, &flags("nano", "1"));
    let named = [
        &flags("nano/train.bin", "2")[..],
        &["--eval-data", "nano/val.bin"],
    ]
    .concat();
    let named = as_json(folder, &named);
    assert!(own["held_out_loss"].is_number(), "{own}");
    assert_eq!(own["held_out_loss"], named["held_out_loss"]);
    assert_eq!(losses(folder, "1"), losses(folder, "2"));
    let judged = as_json(folder, &["eval", "--run", "1"]);
    assert_eq!(judged["loss"], own["held_out_loss"]);
    printed(folder, "train --quiet --resume 1 --steps 4");
    // A part that is too short for a window is reported.
    save("nano/val.bin", 200..205);
    let output = gpipe(folder, &flags("nano", "3"));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("too short: 5 tokens"), "{errors}");
}

/// Regression test: the header was read as tokens, with a vocabulary of 55,433.
#[test]
fn a_file_of_llm_c_has_its_own_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut words = vec![0_u32; 256];
    words[..3].copy_from_slice(&[20_240_520, 1, 300]);
    let header = words.iter().flat_map(|own| own.to_le_bytes());
    let tokens = (0..300_u16).flat_map(|own| squared(own).to_le_bytes());
    fs::write(
        folder.join("tiny.bin"),
        header.chain(tokens).collect::<Vec<u8>>(),
    )
    .unwrap();
    as_json(folder, &flags("tiny.bin", "1"));
    let vocab = config(folder, "1")["model"]["vocab"].as_integer();
    assert_eq!(vocab, Some(50));
}

/// Regression test: the mark counted as a character, which no prompt has.
#[test]
fn a_byte_order_mark_is_no_character() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder);
    let text = fs::read_to_string(folder.join("text.txt")).unwrap();
    fs::write(folder.join("marked.txt"), format!("\u{feff}{text}")).unwrap();
    as_json(folder, &flags("text.txt", "1"));
    as_json(folder, &flags("marked.txt", "2"));
    assert_eq!(losses(folder, "1"), losses(folder, "2"));
    assert_eq!(config(folder, "1")["model"], config(folder, "2")["model"]);
}
