//! Token files.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::width::{HEADER, Width, llm_c};
use super::{Data, Tokens};
use crate::DataError;
use crate::disk_file::DiskFile;
use crate::magic::{self, Magic};
use crate::samples::splits;
use gpipe_partitioner::files;

/// Contents of the description file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beside {
    dtype: Width,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vocabulary: Option<usize>,
    /// Number of tokens, to detect truncated files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".json");
    name.into()
}

fn header(file: &DiskFile) -> Result<Option<(Width, usize)>, DataError> {
    let mut start = [0; 12];
    if file.len() < HEADER {
        return Ok(None);
    }
    file.read(&mut start, 0)?;
    Ok(llm_c(&start))
}

pub(super) fn open(path: &Path) -> Result<Tokens, DataError> {
    let file = DiskFile::open(path)?;
    let header = header(&file)?;
    let (told, start, by) = match header {
        Some((dtype, tokens)) => {
            let vocabulary = described(path)?.and_then(|own| own.vocabulary);
            let told = Beside {
                dtype,
                vocabulary,
                tokens: Some(tokens),
            };
            (told, HEADER, "its header".to_owned())
        }
        None => (told(path)?, 0, beside(path).display().to_string()),
    };
    let width = told.dtype;
    let bytes = width.bytes() as u64;
    let rest = (file.len() - start) % bytes;
    if rest > 0 {
        let what = format!(
            "the file ends with {rest} of a token's {bytes} bytes: was it copied whole, and are its tokens u{}?",
            8 * bytes
        );
        return Err(DataError::bad(path, file.len() - rest, what));
    }
    let there = (file.len() - start) / bytes;
    if let Some(tokens) = told.tokens.filter(|tokens| *tokens as u64 != there) {
        let what =
            format!("the file has {there} tokens, but {by} says {tokens}: was it copied whole?");
        return Err(DataError::bad(path, file.len(), what));
    }
    let mut tokens = Tokens::of(Data::File { file, width, start }, 0);
    tokens.vocabulary = match told.vocabulary {
        Some(vocabulary) => vocabulary,
        None => vocabulary(&tokens)?,
    };
    Ok(tokens)
}

/// Returns the two files of a folder: for training, and held out.
pub(super) fn of_folder(folder: &Path) -> Option<[PathBuf; 2]> {
    let files = fs::read_dir(folder)
        .ok()?
        .filter_map(|own| Some(own.ok()?.path()));
    let is_bin = |own: &PathBuf| own.extension().is_some_and(|end| end == "bin") && own.is_file();
    let parts = splits::parts(files.filter(is_bin));
    match (&parts.train[..], &parts.held_out[..]) {
        ([train], [held_out]) => Some([train.clone(), held_out.clone()]),
        _ => None,
    }
}

/// Whether a file is one of the two that nanoGPT's scripts write.
fn is_nano_gpt(path: &Path) -> bool {
    let names = ["train.bin", "val.bin"];
    let is_one = |own: &&str| path.file_name().is_some_and(|name| name == *own);
    names.iter().any(is_one) && names.iter().all(|own| path.with_file_name(own).is_file())
}

/// Rejects tokens of 4 bytes in files that are assumed to have 2 only because of nanoGPT's names.
fn refuse_wide(path: &Path) -> Result<(), DataError> {
    const BYTES: usize = 1 << 14;
    let file = DiskFile::open(path)?;
    let mut bytes = vec![0; BYTES.min(file.len() as usize)];
    file.read(&mut bytes, 0)?;
    let (fours, _) = bytes.as_chunks::<4>();
    let is_small = |four: &[u8; 4]| four[2..] == [0, 0];
    let has_others = fours.iter().any(|four| four[..2] != [0, 0]);
    if fours.len() < 2 || !has_others || !fours.iter().all(is_small) {
        return Ok(());
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let what = format!(
        "each second number of 2 bytes is 0, as if the tokens had 4, and nanoGPT's have 2: call it {stem}.u32.bin \
         if they have, and else {stem}.u16.bin"
    );
    Err(DataError::bad(path, 0, what))
}

/// Returns one more than the largest token.
fn vocabulary(tokens: &Tokens) -> Result<usize, DataError> {
    let mut vocabulary = 0;
    tokens.visit(0..tokens.len(), |token| {
        vocabulary = vocabulary.max(token as usize + 1);
    })?;
    Ok(vocabulary)
}

/// Describes the tokens of a file without a header.
fn told(path: &Path) -> Result<Beside, DataError> {
    if let Some(told) = described(path)? {
        return Ok(told);
    }
    magic::refuse_other(path, &[Magic::Idx, Magic::Image, Magic::Compressed])?;
    let dtype = match Width::of_name(path) {
        Some(width) => width,
        None if is_nano_gpt(path) => {
            refuse_wide(path)?;
            Width::U16
        }
        None => return Err(untold(path, &beside(path))),
    };
    Ok(Beside {
        dtype,
        vocabulary: None,
        tokens: None,
    })
}

/// Reads the description file, if there is one.
fn described(path: &Path) -> Result<Option<Beside>, DataError> {
    let beside = beside(path);
    let text = match files::read(&beside) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::read(&beside, error)),
    };
    let told = serde_json::from_slice(&text).map_err(|error| {
        let what =
            format!("{error}; {{\"dtype\": \"u16\", \"vocabulary\": 50257}} is how it should look");
        DataError::bad(&beside, 0, what)
    })?;
    Ok(Some(told))
}

fn untold(path: &Path, beside: &Path) -> DataError {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    DataError::Settings(format!(
        "nothing tells how wide the tokens of {} are: call it {stem}.u16.bin or {stem}.u32.bin, or write {{\"dtype\": \"u16\"}} to {}",
        path.display(),
        beside.display()
    ))
}

/// Checks that all tokens are in the vocabulary.
pub(super) fn check(tokens: &[u32], vocabulary: usize) -> Result<(), DataError> {
    let outside = |&token: &u32| token as usize >= vocabulary;
    let Some(place) = tokens.iter().position(outside) else {
        return Ok(());
    };
    Err(DataError::Settings(format!(
        "token {} at {place} is not of the vocabulary, which has {vocabulary}",
        tokens[place]
    )))
}

pub(super) fn write(path: &Path, tokens: &[u32], vocabulary: usize) -> Result<(), DataError> {
    check(tokens, vocabulary)?;
    let dtype = if vocabulary <= 1 << 16 {
        Width::U16
    } else {
        Width::U32
    };
    let told = Beside {
        dtype,
        vocabulary: Some(vocabulary),
        tokens: Some(tokens.len()),
    };
    let told = serde_json::to_string(&told).unwrap_or_default() + "\n";
    let name = beside(path);
    fs::write(&name, told).map_err(|source| DataError::write(&name, source))?;
    let write = || -> io::Result<()> {
        let mut file = io::BufWriter::new(fs::File::create(path)?);
        for token in tokens {
            file.write_all(&token.to_le_bytes()[..dtype.bytes()])?;
        }
        file.flush()
    };
    write().map_err(|source| DataError::write(path, source))
}
