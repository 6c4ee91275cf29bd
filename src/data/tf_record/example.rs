//! `tf.train.Example`: named lists of bytes, floats or integers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use prost::Message;
use thiserror::Error;

use super::TfRecords;
use crate::source::Each;
use crate::{DataError, Dataset, Phase, Place, Source};

/// An error of decoding an example or reading a feature.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExampleError {
    /// The bytes are not an example.
    #[error("this is no tf.train.Example: {0}")]
    Decode(String),
    /// There is no feature of that name.
    #[error("there is no feature `{name}`; there are {present}")]
    Missing {
        /// The requested feature.
        name: String,
        /// The existing features.
        present: String,
    },
    /// The feature has another type.
    #[error("feature `{name}` holds {found}, not {wanted}")]
    Kind {
        /// The feature.
        name: String,
        /// Its type.
        found: String,
        /// The requested type.
        wanted: &'static str,
    },
}

#[derive(Clone, PartialEq, Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct FloatList {
    #[prost(float, repeated, tag = "1")]
    value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct Int64List {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(Int64List),
}

#[derive(Clone, PartialEq, Message)]
struct Feature {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(btree_map = "string, message", tag = "1")]
    feature: BTreeMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
}

/// The features of an example.
///
/// ```
/// use gpipe::data::Example;
///
/// let bytes = Example::default()
///     .with_bytes("image", [vec![0, 255]])
///     .with_ints("label", [3])
///     .encode();
/// let example = Example::decode(&bytes)?;
/// assert_eq!((example.byte_string("image")?, example.int("label")?), (&[0, 255][..], 3));
/// assert!(example.floats("label").unwrap_err().to_string().contains("holds 1 integer"));
/// # Ok::<(), gpipe::data::ExampleError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Example {
    features: BTreeMap<String, Feature>,
}

impl Example {
    /// Decodes an example.
    ///
    /// # Errors
    /// [`ExampleError::Decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ExampleError> {
        let wire = Wire::decode(bytes).map_err(|error| ExampleError::Decode(error.to_string()))?;
        let features = wire.features.unwrap_or_default().feature;
        Ok(Self { features })
    }

    /// Encodes the example for TensorFlow.
    pub fn encode(&self) -> Vec<u8> {
        let feature = self.features.clone();
        let features = Some(Features { feature });
        Wire { features }.encode_to_vec()
    }

    /// Adds a feature of byte strings.
    #[must_use]
    pub fn with_bytes(self, name: &str, value: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let value = value.into_iter().collect();
        self.with(name, Kind::Bytes(BytesList { value }))
    }

    /// Adds a feature of floats.
    #[must_use]
    pub fn with_floats(self, name: &str, value: impl IntoIterator<Item = f32>) -> Self {
        let value = value.into_iter().collect();
        self.with(name, Kind::Floats(FloatList { value }))
    }

    /// Adds a feature of integers.
    #[must_use]
    pub fn with_ints(self, name: &str, value: impl IntoIterator<Item = i64>) -> Self {
        let value = value.into_iter().collect();
        self.with(name, Kind::Ints(Int64List { value }))
    }

    fn with(mut self, name: &str, kind: Kind) -> Self {
        let kind = Some(kind);
        self.features.insert(name.to_owned(), Feature { kind });
        self
    }

    /// Returns the names of all features, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.features.keys().map(String::as_str)
    }

    /// Returns the byte strings of a feature.
    ///
    /// # Errors
    /// There is no such feature, or it has another type.
    pub fn bytes(&self, name: &str) -> Result<&[Vec<u8>], ExampleError> {
        match self.kind(name)? {
            Some(Kind::Bytes(list)) => Ok(&list.value),
            None => Ok(&[]),
            other => Err(wrong(name, other, "bytes")),
        }
    }

    /// Returns the floats of a feature.
    ///
    /// # Errors
    /// As [`Example::bytes`].
    pub fn floats(&self, name: &str) -> Result<&[f32], ExampleError> {
        match self.kind(name)? {
            Some(Kind::Floats(list)) => Ok(&list.value),
            None => Ok(&[]),
            other => Err(wrong(name, other, "floats")),
        }
    }

    /// Returns the integers of a feature.
    ///
    /// # Errors
    /// As [`Example::bytes`].
    pub fn ints(&self, name: &str) -> Result<&[i64], ExampleError> {
        match self.kind(name)? {
            Some(Kind::Ints(list)) => Ok(&list.value),
            None => Ok(&[]),
            other => Err(wrong(name, other, "integers")),
        }
    }

    /// Returns the byte string of a feature with a single one.
    ///
    /// # Errors
    /// As [`Example::bytes`], or there is not exactly one.
    pub fn byte_string(&self, name: &str) -> Result<&[u8], ExampleError> {
        match self.bytes(name)? {
            [one] => Ok(one),
            _ => Err(wrong(name, self.kind(name)?, "one byte string")),
        }
    }

    /// Returns the integer of a feature with a single one.
    ///
    /// # Errors
    /// As [`Example::ints`], or there is not exactly one.
    pub fn int(&self, name: &str) -> Result<i64, ExampleError> {
        match self.ints(name)? {
            [one] => Ok(*one),
            _ => Err(wrong(name, self.kind(name)?, "one integer")),
        }
    }

    fn kind(&self, name: &str) -> Result<Option<&Kind>, ExampleError> {
        let feature = self.features.get(name);
        let feature = feature.ok_or_else(|| ExampleError::Missing {
            name: name.to_owned(),
            present: listed(self.names()),
        })?;
        Ok(feature.kind.as_ref())
    }
}

impl TfRecords {
    /// Decodes the records as `tf.train.Example`s.
    pub fn examples(self) -> Dataset<impl Source<Item = Example>> {
        Dataset::new(Examples { records: self })
    }
}

/// Records, each decoded when read.
struct Examples {
    records: TfRecords,
}

impl Examples {
    fn decode(&self, index: usize, data: &[u8]) -> Result<Example, DataError> {
        let example = Phase::Decode.during(|| Example::decode(data));
        example.map_err(|error| DataError::Item {
            place: self.records.place(0, index),
            source: error.into(),
        })
    }
}

impl Source for Examples {
    type Item = Example;

    fn len(&self) -> usize {
        self.records.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Example, DataError> {
        self.decode(index, &self.records.get(epoch, index)?)
    }

    fn batch(&self, _: u64, indices: &[usize], each: Each<'_, Example>) -> ControlFlow<()> {
        let mut next = indices.iter();
        self.records.show(indices, |data| match next.next() {
            Some(&index) => each(data.and_then(|data| self.decode(index, data))),
            None => ControlFlow::Break(()),
        })
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.records.place(epoch, index)
    }

    fn identity(&self) -> String {
        self.records.identity()
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

fn wrong(name: &str, kind: Option<&Kind>, wanted: &'static str) -> ExampleError {
    let (count, what) = match kind {
        Some(Kind::Bytes(list)) => (list.value.len(), "byte string"),
        Some(Kind::Floats(list)) => (list.value.len(), "float"),
        Some(Kind::Ints(list)) => (list.value.len(), "integer"),
        None => (0, "value"),
    };
    let plural = if count == 1 { "" } else { "s" };
    ExampleError::Kind {
        name: name.to_owned(),
        found: format!("{count} {what}{plural}"),
        wanted,
    }
}
