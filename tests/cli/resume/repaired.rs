//! Token files with invalid tokens that are repaired later.

use std::fs;
use std::path::Path;

use super::{assert_same, fails, losses, place, trained};

const MODEL: &str = "--model gpt --layers 1 --d-model 8 --heads 2 --seq 256 --batch 4 --micro 1 \
                     --threads-per-stage 1 --checkpoint-every 1 --seed 1";

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    MODEL
        .split_whitespace()
        .chain(more.iter().copied())
        .collect()
}

fn write(folder: &Path, tokens: &[u16]) {
    let bytes: Vec<u8> = tokens.iter().flat_map(|one| one.to_le_bytes()).collect();
    fs::write(folder.join("tokens.u16.bin"), bytes).unwrap();
    let beside = r#"{"dtype":"u16","vocabulary":50}"#;
    fs::write(folder.join("tokens.u16.bin.json"), beside).unwrap();
}

/// Regression test: the error came when the token was drawn, and after the repair the saved position did not
/// match the data: the run could never be resumed.
#[test]
fn a_token_that_positions_depend_on_is_found_before_anything_is_trained() {
    let folder = place();
    let folder = folder.path();
    let good: Vec<u16> = (0..2000).map(|place| place % 50).collect();
    for wrong in [900, 1999] {
        let mut tokens = good.clone();
        tokens[wrong] = 60_000;
        write(folder, &tokens);
        let begin = flags(&["--data", "tokens.u16.bin", "--steps", "2", "--out", "run"]);
        let wanted = format!("--data: tokens.u16.bin, byte {}: token 60000", 2 * wrong);
        fails(folder, &begin, 2, &[&wanted, "which has 50"]);
        assert!(!folder.join("run").exists());
    }
}

/// In the middle of a large file tokens are not checked, which would take as long as reading all of it; a
/// repair there does not change the data's identity.
#[test]
fn a_token_amid_many_ends_a_run_that_goes_on_once_it_is_repaired() {
    let folder = place();
    let folder = folder.path();
    let good: Vec<u16> = (0..2_500_000_u32)
        .map(|place| (place % 50) as u16)
        .collect();
    let run =
        |out: &'static str| flags(&["--data", "tokens.u16.bin", "--steps", "20", "--out", out]);
    let mut tokens = good.clone();
    tokens[1_070_000..1_180_000].fill(60_000);
    write(folder, &tokens);
    let wanted = [
        "tokens.u16.bin, byte ",
        "token 60000 is not of the vocabulary",
    ];
    fails(folder, &run("run"), 1, &wanted);
    assert!(
        !losses(folder, "run").is_empty(),
        "the first one has hit it"
    );
    write(folder, &good);
    trained(folder, &["--resume", "run"]);
    trained(folder, &run("whole"));
    assert_same(folder, "run", "whole");
}
