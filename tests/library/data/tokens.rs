//! Files of tokens.

use std::fs;
use std::path::Path;

use gpipe::data::{DataError, Source, Split, Tokens};

use super::{numbers, says};

fn write(path: &Path, tokens: &[u16]) {
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    fs::write(path, bytes).unwrap();
}

#[test]
fn the_name_or_the_file_beside_it_tells_the_width() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tokens: Vec<u16> = (0..40).map(|token| token * 1000).collect();
    write(&path("a.u16.bin"), &tokens);
    let named = Tokens::open(&path("a.u16.bin")).unwrap();
    assert_eq!((named.len(), named.vocabulary()), (40, 39_001));
    assert_eq!(named.get(37..40).unwrap(), [37_000, 38_000, 39_000]);

    write(&path("b.bin"), &tokens);
    let error = Tokens::open(&path("b.bin")).unwrap_err();
    says(&error, &["b.u16.bin", "b.bin.json", r#"{"dtype": "u16"}"#]);
    assert!(error.is_wrong_use());
    let beside = path("b.bin.json");
    fs::write(&beside, r#"{"dtype": "uint16", "vocabulary": 50257}"#).unwrap();
    assert_eq!(Tokens::open(&path("b.bin")).unwrap().vocabulary(), 50_257);
    fs::write(&beside, r#"{"dtype": "u8"}"#).unwrap();
    says(
        &Tokens::open(&path("b.bin")).unwrap_err(),
        &["b.bin.json", "u8"],
    );
    fs::write(&beside, r#"{"dtype": "u32"}"#).unwrap();
    let wide = Tokens::open(&path("b.bin")).unwrap();
    assert_eq!(
        (wide.len(), wide.get(0..1).unwrap()),
        (20, vec![1000 << 16])
    );
}

#[test]
fn what_is_written_is_read_and_takes_two_bytes_where_that_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    for (vocabulary, width) in [(65_536, 2), (65_537, 4)] {
        let all: Vec<u32> = vec![7, 0, 65_535, 3];
        Tokens::write(&path, &all, vocabulary).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 * width);
        let tokens = Tokens::open(&path).unwrap();
        assert_eq!(tokens.vocabulary(), vocabulary);
        assert_eq!(tokens.get(0..4).unwrap(), [7, 0, 65_535, 3]);
    }
    let error = Tokens::write(&path, &[1, 2, 9], 9).unwrap_err();
    says(&error, &["token 9 at 2", "which has 9"]);
}

#[test]
fn damaged_files_are_named_with_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.u32.bin");
    fs::write(&path, [0; 9]).unwrap();
    says(
        &Tokens::open(&path).unwrap_err(),
        &["u32.bin, byte 8", "1 of a token's 4 bytes"],
    );

    let path = folder.path().join("tokens.u16.bin");
    write(&path, &[1, 2, 3, 900, 4, 5]);
    let beside = folder.path().join("tokens.u16.bin.json");
    fs::write(beside, r#"{"dtype": "u16", "vocabulary": 10}"#).unwrap();
    let tokens = Tokens::open(&path).unwrap();
    let windows = tokens.windows(2).unwrap().batch(1);
    let error = windows.load().unwrap().find_map(Result::err).unwrap();
    says(
        &error,
        &["tokens.u16.bin, byte 6", "token 900", "which has 10"],
    );
}

#[test]
fn an_empty_file_has_no_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.u16.bin");
    fs::write(&path, []).unwrap();
    let tokens = Tokens::open(&path).unwrap();
    assert!(tokens.is_empty());
    let error: DataError = tokens.windows(4).unwrap_err();
    says(&error, &["no window of 4 tokens", "0 tokens"]);
}

#[test]
fn parts_share_the_tokens_and_random_windows_stay_inside() {
    let tokens = Tokens::new((0..100).collect());
    let (train, held_out) = (tokens.split(Split::Train), tokens.split(Split::HeldOut));
    assert_eq!((train.len(), held_out.len()), (90, 10));
    assert_eq!(held_out.get(0..2).unwrap(), [90, 91]);
    let windows = train.random_windows(5, 3).unwrap();
    assert_ne!(
        windows.identity(),
        held_out.random_windows(5, 3).unwrap().identity()
    );
    let mut loader = windows.batch(50).workers(2).load().unwrap();
    let (x, y) = loader.next().unwrap().unwrap();
    assert_eq!((x.size(), &x + 1), (vec![50, 5], y.shallow_clone()));
    assert!(numbers(&y).into_iter().max() <= Some(89));
}

/// Saved positions depend on it, however the tokens are stored and read.
#[test]
fn the_checksum_is_that_of_the_tokens_as_four_bytes_each() {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<u32> = (0..200_003_u32).map(|place| place * 7 % 60_000).collect();
    for part in [0..200_003, 3..100_000, 65_535..65_541] {
        let bytes = all[part.clone()]
            .iter()
            .flat_map(|token| token.to_le_bytes());
        let bytes: Vec<u8> = bytes.collect();
        // Both ends, each of which covers the whole.
        let sum = crc32c::crc32c(&[&bytes[..], &bytes].concat());
        let wanted = format!(
            "windows of 4 in {} tokens with checksum {sum:08x}",
            part.len()
        );
        for vocabulary in [60_000, 70_000] {
            let path = folder.path().join("tokens.bin");
            Tokens::write(&path, &all, vocabulary).unwrap();
            let read = Tokens::open(&path).unwrap().range(part.clone());
            assert_eq!(read.windows(4).unwrap().identity(), wanted);
        }
        let held = Tokens::new(all.clone()).range(part);
        assert_eq!(held.windows(4).unwrap().identity(), wanted);
    }
}

/// Writes a file in the format of llm.c.
fn of_llm_c(path: &Path, [magic, version, count]: [u32; 3], tokens: &[u8]) {
    let mut header = [0_u32; 256];
    header[..3].copy_from_slice(&[magic, version, count]);
    let header = header.iter().flat_map(|own| own.to_le_bytes());
    fs::write(
        path,
        header.chain(tokens.iter().copied()).collect::<Vec<u8>>(),
    )
    .unwrap();
}

/// Regression test: the 1,024 bytes of the header were read as tokens: 512 of them, and a vocabulary of
/// 55,433.
#[test]
fn the_header_of_llm_c_is_no_tokens_and_tells_their_width() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    let two: Vec<u8> = (0..40_u16).flat_map(|own| own.to_le_bytes()).collect();
    let four: Vec<u8> = (0..40_u32).flat_map(|own| own.to_le_bytes()).collect();
    for (magic, version, bytes) in [(20_240_520, 1, &two), (20_240_801, 7, &four)] {
        of_llm_c(&path, [magic, version, 40], bytes);
        let own = Tokens::open(&path).unwrap();
        assert_eq!((own.len(), own.vocabulary()), (40, 40), "{magic}");
        assert_eq!(own.get(37..40).unwrap(), [37, 38, 39]);
        let windows = own.windows(13).unwrap();
        let (x, y) = windows.batch(3).load().unwrap().next().unwrap().unwrap();
        assert_eq!(numbers(&x), (0..39).collect::<Vec<_>>());
        assert_eq!(numbers(&y), (1..40).collect::<Vec<_>>());
    }
    // The file beside it takes precedence, and positions are those in the file.
    fs::write(
        folder.path().join("tokens.bin.json"),
        r#"{"dtype": "u32", "vocabulary": 39}"#,
    )
    .unwrap();
    let own = Tokens::open(&path).unwrap();
    assert_eq!(own.vocabulary(), 39);
    says(
        &own.get(0..40).unwrap_err(),
        &["tokens.bin, byte 1180", "token 39"],
    );
    of_llm_c(&path, [20_240_520, 1, 41], &two);
    let cut = Tokens::open(&path).unwrap_err();
    says(&cut, &["40 tokens, but its header says 41", "copied whole"]);
}

#[test]
fn a_pair_of_nano_gpt_has_two_bytes_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(&path("train.bin"), &[1, 2, 3, 60_000]);
    says(
        &Tokens::open(&path("train.bin")).unwrap_err(),
        &["train.u16.bin", "train.bin.json"],
    );
    write(&path("val.bin"), &[4, 5]);
    let own = Tokens::open(&path("train.bin")).unwrap();
    assert_eq!((own.len(), own.vocabulary()), (4, 60_001));
    assert_eq!(Tokens::open(&path("val.bin")).unwrap().len(), 2);
    // Four-byte tokens would be read as twice as many.
    write(&path("train.bin"), &[1, 0, 2, 0, 3, 0]);
    let wide = Tokens::open(&path("train.bin")).unwrap_err();
    says(
        &wide,
        &["train.bin", "as if the tokens had 4", "train.u32.bin"],
    );
}

#[test]
fn another_kind_of_file_is_not_a_file_of_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.u16.bin");
    fs::write(&path, [&b"PK\x03\x04"[..], &[0; 60]].concat()).unwrap();
    says(
        &Tokens::open(&path).unwrap_err(),
        &["this is a zip archive", "Array::npz"],
    );
}
