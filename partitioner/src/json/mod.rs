//! Strict reading of JSON files: every error names file, field and rule.
//!
//! The types that a file is read into define its format (`serde`, unknown fields denied, numbers
//! and lists bounded by [`bounded`]); `serde_path_to_error` gives the place of an error. Broken
//! input must not cause a panic or use gigabytes, so the file's size is bounded.

mod bounded;
mod rule;

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub(crate) use bounded::{List, Number, Object, Text, Whole, within};
pub(crate) use rule::shorten;

/// Largest file that is read, in bytes.
pub(crate) const MAX_FILE: u64 = 64 << 20;
/// Largest amount of memory of one field: 1 PiB.
pub(crate) const MAX_BYTES: u64 = 1 << 50;
/// Longest time of one field, in microseconds: eleven days.
pub(crate) const MAX_MICROS: f64 = MICROS_LIMIT as f64;
/// [`MAX_MICROS`] as a parameter of [`Number`].
pub(crate) const MICROS_LIMIT: u64 = 1_000_000_000_000;

/// Why a file cannot be used: the place, and the broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {}{rule}", Prefix(.field))]
#[non_exhaustive]
pub struct ReadError {
    /// The file, as the caller named it.
    pub file: String,
    /// The field, such as `layers[3].forward_us`; empty for the file as a whole.
    pub field: String,
    /// The rule that is broken, with the offending value.
    pub rule: String,
}

impl ReadError {
    pub(crate) fn new(file: &str, field: impl Into<String>, rule: impl fmt::Display) -> Self {
        Self {
            file: file.to_owned(),
            field: field.into(),
            rule: rule.to_string(),
        }
    }
}

struct Prefix<'a>(&'a str);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            field => write!(f, "{field}: "),
        }
    }
}

/// Returns the text of a file; reads at most a byte beyond [`MAX_FILE`].
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    let error = |rule: String| ReadError::new(&path.display().to_string(), "", rule);
    if path.is_dir() {
        return Err(error("is a folder: name a file in it".to_owned()));
    }
    let file = std::fs::File::open(path).map_err(|e| {
        let near = crate::words::path_instead(path);
        error(format!("cannot be opened: {e}{near}"))
    })?;
    let mut text = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut text);
    read.map_err(|e| error(format!("cannot be read: {e}")))?;
    Ok(text)
}

/// Format of a file, and the means to tell files of other formats.
pub(crate) struct FileFormat {
    /// The version that this build reads.
    pub(crate) version: u64,
    /// A field that every file of this format has.
    pub(crate) own: &'static str,
    /// A field that marks another format, and the message about such a file.
    pub(crate) other: (&'static str, &'static str),
    /// Message about a file of no known format.
    pub(crate) none: &'static str,
}

/// Parses a file that holds an object; an error names the field and the broken rule.
///
/// The version is checked before all other fields, which may differ in a newer version.
pub(crate) fn parse_file<'de, T: Deserialize<'de>>(
    text: &'de [u8],
    file: &str,
    format: &FileFormat,
) -> Result<T, ReadError> {
    if text.len() as u64 > MAX_FILE {
        let rule = format!("is larger than {MAX_FILE} bytes");
        return Err(ReadError::new(file, "", rule));
    }
    // A file that is not even an object is parsed as a whole, to find the place.
    if let Ok(Object(head)) = serde_json::from_slice(text) {
        check_head(&head, format).map_err(|(field, rule)| ReadError::new(file, field, rule))?;
        return parse(text, file);
    }
    let is_object = text.trim_ascii_start().starts_with(b"{");
    let parsed = parse(text, file);
    if is_object {
        return parsed;
    }
    parsed.map_err(|error| ReadError::new(file, "", format!("{}; {}", error.rule, format.none)))
}

/// Parses an object in JSON; an error names the field and the broken rule.
pub(crate) fn parse<'de, T: Deserialize<'de>>(text: &'de [u8], file: &str) -> Result<T, ReadError> {
    let mut place = serde_path_to_error::Track::new();
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = Object::deserialize(serde_path_to_error::Deserializer::new(
        &mut json, &mut place,
    ));
    let value = value.and_then(|value| json.end().map(|()| value));
    value.map(|Object(fields)| fields).map_err(|error| {
        let (field, rule) = rule::of(&place.path(), &error);
        ReadError::new(file, field, rule)
    })
}

/// The fields that tell a file's format.
#[derive(Deserialize)]
struct Head {
    #[serde(default, deserialize_with = "given")]
    version: Option<Value>,
    layers: Option<IgnoredAny>,
    balance: Option<IgnoredAny>,
}

/// Treats `null` as given.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

fn check_head(head: &Head, format: &FileFormat) -> Result<(), (&'static str, String)> {
    let has = |name| match name {
        "layers" => head.layers.is_some(),
        "balance" => head.balance.is_some(),
        _ => false,
    };
    let (known, (other, rule)) = (format.version, format.other);
    match &head.version {
        None => Err(("version", format!("is missing; {}", format.none))),
        Some(version) if version.as_u64() != Some(known) => {
            let version = shorten(&version.to_string());
            let rule =
                format!("{version} is not a version that this build reads; it reads {known}");
            Err(("version", rule))
        }
        Some(_) if has(other) && !has(format.own) => Err(("", rule.to_owned())),
        Some(_) => Ok(()),
    }
}
