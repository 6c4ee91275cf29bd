//! Strict reading of JSON from outside: every error names file, field and rule.
//!
//! Broken input must cost neither a panic nor gigabytes, so the size of the text, the
//! number of values and the fields of an object are bounded, doubled and unknown fields
//! are errors, and each number is checked against its range where it is read.

mod parse;

use std::fmt;
use std::io::Read;
use std::path::Path;

use crate::units::{Bytes, Micros};

pub(crate) use parse::Node;

/// The most fields of an object.
pub(crate) const MAX_FIELDS: usize = 64;
/// The largest file that is read, in bytes.
pub(crate) const MAX_FILE: u64 = 64 << 20;
/// The largest amount of memory that one field may name: 1 PiB.
pub(crate) const MAX_BYTES: u64 = 1 << 50;
/// The longest time that one field may name, in microseconds: eleven days.
pub(crate) const MAX_MICROS: f64 = 1e12;

/// Why a file cannot be used: where, and which rule it breaks.
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

struct Prefix<'a>(&'a str);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            field => write!(f, "{field}: "),
        }
    }
}

/// The text of a file, if it is not longer than [`MAX_FILE`].
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    let error = |rule: String| ReadError {
        file: path.display().to_string(),
        field: String::new(),
        rule,
    };
    let file = std::fs::File::open(path).map_err(|e| error(format!("cannot be opened: {e}")))?;
    let mut text = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut text);
    read.map_err(|e| error(format!("cannot be read: {e}")))?;
    Ok(text)
}

/// Where a value was.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    file: String,
    field: String,
}

impl Place {
    pub(crate) fn new(file: &str, field: &str) -> Self {
        Self {
            file: file.to_owned(),
            field: field.to_owned(),
        }
    }

    pub(crate) fn error(&self, rule: impl fmt::Display) -> ReadError {
        ReadError {
            file: self.file.clone(),
            field: self.field.clone(),
            rule: rule.to_string(),
        }
    }
}

/// A value with its place, for the error.
#[derive(Debug)]
pub(crate) struct Located<'a> {
    file: &'a str,
    path: String,
    node: Node,
}

impl<'a> Located<'a> {
    /// Parses a whole file.
    pub(crate) fn parse(text: &[u8], file: &'a str) -> Result<Self, ReadError> {
        let node = parse::parse(text).map_err(|(field, rule)| ReadError {
            file: file.to_owned(),
            field,
            rule,
        })?;
        Ok(Self {
            file,
            path: String::new(),
            node,
        })
    }

    pub(crate) fn error(&self, rule: impl fmt::Display) -> ReadError {
        ReadError {
            file: self.file.to_owned(),
            field: self.path.clone(),
            rule: rule.to_string(),
        }
    }

    /// The place alone, to name it once the value is used up.
    pub(crate) fn place(&self) -> Place {
        Place::new(self.file, &self.path)
    }

    fn wrong_type(&self, expected: &str) -> ReadError {
        self.error(format_args!("must be {expected}, is {}", self.node))
    }

    /// A whole number in `min..=max`.
    pub(crate) fn count(&self, min: u64, max: u64) -> Result<u64, ReadError> {
        let rule = format!("a whole number from {min} to {max}");
        match self.node {
            Node::Integer(value) if (min..=max).contains(&value) => Ok(value),
            _ => Err(self.wrong_type(&rule)),
        }
    }

    /// [`count`](Self::count) as an index or a length.
    pub(crate) fn size(&self, min: usize, max: usize) -> Result<usize, ReadError> {
        // The bounds are those of a usize, so the value is one.
        self.count(min as u64, max as u64).map(|n| n as usize)
    }

    pub(crate) fn bytes(&self) -> Result<Bytes, ReadError> {
        self.count(0, MAX_BYTES).map(Bytes)
    }

    /// A finite number in `min..=max`.
    pub(crate) fn number(&self, min: f64, max: f64) -> Result<f64, ReadError> {
        let value = match self.node {
            Node::Integer(value) => value as f64,
            Node::Number(value) => value,
            _ => f64::NAN,
        };
        if (min..=max).contains(&value) {
            Ok(value)
        } else {
            Err(self.wrong_type(&format!("a number from {min} to {max}")))
        }
    }

    pub(crate) fn micros(&self) -> Result<Micros, ReadError> {
        let micros = self.number(0.0, MAX_MICROS)?;
        Micros::new(micros).map_err(|e| self.error(e))
    }

    pub(crate) fn boolean(&self) -> Result<bool, ReadError> {
        match self.node {
            Node::Bool(value) => Ok(value),
            _ => Err(self.wrong_type("true or false")),
        }
    }

    /// Nothing for `null`, else what `read` gives.
    pub(crate) fn nullable<T>(
        self,
        read: impl Fn(&Self) -> Result<T, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        match self.node {
            Node::Null => Ok(None),
            _ => read(&self).map(Some),
        }
    }

    /// A text of at most `max` bytes.
    pub(crate) fn text(self, max: usize) -> Result<String, ReadError> {
        match self.node {
            Node::Text(text) if text.len() <= max => Ok(text),
            _ => Err(self.wrong_type(&format!("a text of at most {max} bytes"))),
        }
    }

    /// A list of `min..=max` entries.
    pub(crate) fn list(self, min: usize, max: usize) -> Result<Vec<Located<'a>>, ReadError> {
        let Node::List(nodes) = self.node else {
            return Err(self.wrong_type("a list"));
        };
        let located = |(index, node)| Located {
            file: self.file,
            path: format!("{}[{index}]", self.path),
            node,
        };
        if (min..=max).contains(&nodes.len()) {
            return Ok(nodes.into_iter().enumerate().map(located).collect());
        }
        let rule = format!("must have from {min} to {max} entries, has {}", nodes.len());
        Err(ReadError {
            file: self.file.to_owned(),
            field: self.path,
            rule,
        })
    }

    /// The fields of an object.
    pub(crate) fn fields(self) -> Result<Fields<'a>, ReadError> {
        match self.node {
            Node::Object(entries) => Ok(Fields {
                file: self.file,
                path: self.path,
                entries,
                taken: Vec::new(),
            }),
            _ => Err(self.wrong_type("an object")),
        }
    }
}

/// An object whose fields are taken one by one; what is left over is unknown.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    path: String,
    entries: Vec<(String, Node)>,
    taken: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    fn at(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    /// An error about the object as a whole.
    pub(crate) fn error(&self, rule: impl fmt::Display) -> ReadError {
        ReadError {
            file: self.file.to_owned(),
            field: self.path.clone(),
            rule: rule.to_string(),
        }
    }

    /// Whether there is a field of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key == name)
    }

    pub(crate) fn optional(&mut self, name: &'static str) -> Option<Located<'a>> {
        self.taken.push(name);
        let index = self.entries.iter().position(|(key, _)| key == name)?;
        let (_, node) = self.entries.swap_remove(index);
        Some(Located {
            file: self.file,
            path: self.at(name),
            node,
        })
    }

    pub(crate) fn required(&mut self, name: &'static str) -> Result<Located<'a>, ReadError> {
        self.optional(name).ok_or_else(|| ReadError {
            file: self.file.to_owned(),
            field: self.at(name),
            rule: "is missing".to_owned(),
        })
    }

    /// All fields, whatever their names.
    pub(crate) fn all(self) -> Vec<(String, Located<'a>)> {
        let paths: Vec<String> = (self.entries.iter())
            .map(|(name, _)| self.at(&parse::shorten(name)))
            .collect();
        let located = |((name, node), path)| {
            let file = self.file;
            (name, Located { file, path, node })
        };
        self.entries.into_iter().zip(paths).map(located).collect()
    }

    /// The field `version`, which must be `known`; to be read before all others.
    pub(crate) fn version(&mut self, known: u64) -> Result<(), ReadError> {
        let version = self.required("version")?;
        match version.node {
            Node::Integer(number) if number == known => Ok(()),
            _ => Err(version.error(format_args!(
                "{} is not a version that this build reads; it reads {known}",
                version.node
            ))),
        }
    }

    /// That no field is left.
    pub(crate) fn finish(self) -> Result<(), ReadError> {
        let Some((name, _)) = self.entries.first() else {
            return Ok(());
        };
        Err(ReadError {
            file: self.file.to_owned(),
            field: self.at(&parse::shorten(name)),
            rule: format!("is not a field here; there are {}", self.taken.join(", ")),
        })
    }
}
