//! Text to a tree of values, with the place of the first error.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use super::MAX_FIELDS;

/// The most values a file may hold.
const MAX_VALUES: usize = 4_000_000;

/// One value.
#[derive(Debug)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    /// A whole number from 0 to `u64::MAX`.
    Integer(u64),
    /// Any other number; finite.
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) if value.abs() >= 1e15 => write!(f, "{value:e}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "the text \"{}\"", shorten(text)),
            Self::List(nodes) => write!(f, "a list of {}", nodes.len()),
            Self::Object(_) => f.write_str("an object"),
        }
    }
}

/// At most 40 characters of a text, none of them a control character.
pub(super) fn shorten(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(40).map(clean).collect();
    if text.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

/// The place so far (not taken back on an error) and the values so far.
#[derive(Default)]
struct Place {
    path: Vec<Segment>,
    values: usize,
}

enum Segment {
    Index(usize),
    Field(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, segment) in self.path.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Field(name) if depth == 0 => f.write_str(&shorten(name))?,
                Segment::Field(name) => write!(f, ".{}", shorten(name))?,
            }
        }
        Ok(())
    }
}

/// Parses a text, or says at which field which rule is broken.
pub(super) fn parse(text: &[u8]) -> Result<Node, (String, String)> {
    if text.len() as u64 > super::MAX_FILE {
        let rule = format!("is larger than {} bytes", super::MAX_FILE);
        return Err((String::new(), rule));
    }
    let place = RefCell::new(Place::default());
    let mut reader = serde_json::Deserializer::from_slice(text);
    let node = Seed { place: &place }.deserialize(&mut reader);
    let node = node.and_then(|node| reader.end().map(|()| node));
    node.map_err(|error| {
        let rule = if error.is_syntax() || error.is_eof() {
            format!("is not JSON ({error})")
        } else {
            error.to_string()
        };
        (place.borrow().to_string(), rule)
    })
}

/// Reads one value at the current place.
#[derive(Clone, Copy)]
struct Seed<'a> {
    place: &'a RefCell<Place>,
}

impl Seed<'_> {
    fn enter(self, segment: Segment) {
        self.place.borrow_mut().path.push(segment);
    }

    fn leave(self) {
        self.place.borrow_mut().path.pop();
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Node, D::Error> {
        let values = {
            let mut place = self.place.borrow_mut();
            place.values += 1;
            place.values
        };
        if values > MAX_VALUES {
            return Err(D::Error::custom(format_args!(
                "the file holds more than {MAX_VALUES} values"
            )));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Integer(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        loop {
            self.enter(Segment::Index(nodes.len()));
            let Some(node) = list.next_element_seed(self)? else {
                break;
            };
            self.leave();
            nodes.push(node);
        }
        self.leave();
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            self.enter(Segment::Field(name.clone()));
            if entries.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom("is given twice"));
            }
            if entries.len() == MAX_FIELDS {
                return Err(A::Error::custom(format_args!(
                    "is one field more than the {MAX_FIELDS} that an object may have"
                )));
            }
            let node = map.next_value_seed(self)?;
            self.leave();
            entries.push((name, node));
        }
        Ok(Node::Object(entries))
    }
}
