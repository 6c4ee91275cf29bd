//! Values as given, and their conversion to a key's kind.

use std::fmt;

use toml::de::{DeInteger, DeValue};

/// The kind of a key's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole number.
    Whole,
    /// A whole number, or the text `auto`.
    WholeOrAuto,
    /// A number.
    Number,
    /// True or false.
    Truth,
    /// A text.
    Text,
    /// A list, or a text with commas.
    List,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "a whole number",
            Self::WholeOrAuto => "a whole number or \"auto\"",
            Self::Number => "a number",
            Self::Truth => "true or false",
            Self::Text => "a text",
            Self::List => "a list",
        })
    }
}

/// A value of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// As spelled in the source, like numbers below, so that no digit is lost.
    Whole(String),
    Number(String),
    Truth(bool),
    Text(String),
    List(Vec<Value>),
    /// A table where a value is expected.
    Table,
    /// A type of value that no key takes.
    Other(&'static str),
    /// Untyped text, from the environment or `--set`; the key decides its meaning.
    Plain(String),
}

impl Value {
    /// Converts a TOML value.
    pub(super) fn of_toml(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::Integer(number) => Self::Whole(digits(number)),
            DeValue::Float(number) => Self::Number(number.as_str().to_owned()),
            DeValue::Boolean(truth) => Self::Truth(*truth),
            DeValue::String(text) => Self::Text(text.to_string()),
            DeValue::Array(items) => {
                let items = items.iter().map(|item| Self::of_toml(item.get_ref()));
                Self::List(items.collect())
            }
            DeValue::Table(_) => Self::Table,
            DeValue::Datetime(_) => Self::Other("a date or time"),
        }
    }

    /// Converts text from the environment or `--set`; parsed as TOML if it begins like a list or a
    /// quoted string.
    pub(super) fn of_text(text: &str) -> Self {
        let text_or_toml = text.trim();
        if text_or_toml.starts_with(['[', '"', '\''])
            && let Ok(value) = DeValue::parse(text_or_toml)
        {
            return Self::of_toml(value.get_ref());
        }
        Self::Plain(text.to_owned())
    }

    /// The shortest text that parses back to the same number.
    pub(crate) fn number(number: f64) -> Self {
        Self::Number(format!("{number:?}"))
    }

    /// A count.
    pub(crate) fn whole(number: impl fmt::Display) -> Self {
        Self::Whole(number.to_string())
    }

    /// Returns the value in a flag's spelling, if a key of this kind accepts it.
    pub(super) fn spelt(&self, kind: Kind) -> Result<String, String> {
        match (kind, self) {
            (_, Self::Plain(text))
            | (Kind::Text | Kind::List, Self::Text(text))
            | (Kind::Whole, Self::Whole(text))
            | (Kind::WholeOrAuto, Self::Whole(text) | Self::Text(text))
            | (Kind::Number, Self::Whole(text) | Self::Number(text)) => Ok(text.clone()),
            (Kind::Truth, Self::Truth(truth)) => Ok(truth.to_string()),
            (Kind::List, Self::List(items)) => {
                let items: Option<Vec<String>> = items.iter().map(Self::item).collect();
                let items = items.ok_or("a list has texts, numbers, true or false")?;
                Ok(items.join(","))
            }
            _ => Err(format!("must be {kind}, not {}", self.what())),
        }
    }

    fn item(&self) -> Option<String> {
        match self {
            Self::Whole(text) | Self::Number(text) | Self::Text(text) => Some(text.clone()),
            Self::Truth(truth) => Some(truth.to_string()),
            _ => None,
        }
    }

    fn what(&self) -> &str {
        match self {
            Self::Whole(_) | Self::Number(_) => "a number",
            Self::Truth(_) => "true or false",
            Self::Text(_) | Self::Plain(_) => "a text",
            Self::List(_) => "a list",
            Self::Table => "a table",
            Self::Other(what) => what,
        }
    }

    /// Short form for messages, as on a command line: `cpu,cpu`.
    pub(super) fn short(&self) -> String {
        match self {
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::short).collect();
                items.join(",")
            }
            Self::Text(text) if text.is_empty() || text.contains(char::is_whitespace) => {
                format!("\"{text}\"")
            }
            Self::Text(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// As TOML.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(text) | Self::Number(text) | Self::Plain(text) => f.write_str(text),
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::Text(text) => write!(f, "{}", toml::Value::String(text.clone())),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Table | Self::Other(_) => f.write_str(self.what()),
        }
    }
}

/// Returns the number in base ten, the only base that flags accept.
fn digits(number: &DeInteger<'_>) -> String {
    let text = number.as_str();
    match i128::from_str_radix(text, number.radix()) {
        Ok(value) => value.to_string(),
        // Longer than any number a key accepts: rejected when it is parsed.
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Value {
        Value::of_toml(DeValue::parse(text).unwrap().get_ref())
    }

    #[test]
    fn values_are_spelt_as_flags_have_them() {
        let spelt = |text: &str, kind| of(text).spelt(kind).unwrap();
        assert_eq!(spelt("0x10", Kind::Whole), "16");
        assert_eq!(spelt("1_000", Kind::Whole), "1000");
        assert_eq!(spelt("4", Kind::WholeOrAuto), "4");
        assert_eq!(spelt("'auto'", Kind::WholeOrAuto), "auto");
        assert_eq!(
            spelt("18446744073709551615", Kind::Whole),
            u64::MAX.to_string()
        );
        assert_eq!(spelt("3e-3", Kind::Number), "3e-3");
        assert_eq!(spelt("['cpu', 'cuda:0']", Kind::List), "cpu,cuda:0");
        assert_eq!(spelt("[3, 5]", Kind::List), "3,5");
        assert_eq!(spelt("'cpu,cpu'", Kind::List), "cpu,cpu");
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_both_types() {
        for (text, kind, wanted) in [
            ("'5'", Kind::Whole, "must be a whole number, not a text"),
            ("5.0", Kind::Whole, "must be a whole number, not a number"),
            ("true", Kind::Number, "must be a number, not true or false"),
            ("3", Kind::Text, "must be a text, not a number"),
            (
                "1979-05-27",
                Kind::List,
                "must be a list, not a date or time",
            ),
            ("{a = 1}", Kind::Text, "must be a text, not a table"),
            ("[[1]]", Kind::List, "a list has texts, numbers"),
        ] {
            let error = of(text).spelt(kind).unwrap_err();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_plain_text_may_be_toml_where_it_looks_like_it() {
        assert_eq!(Value::of_text("[1, 2]").short(), "1,2");
        assert_eq!(Value::of_text("\"a b\"").short(), "\"a b\"");
        let path = Value::of_text("[draft] text.txt");
        assert_eq!(path.spelt(Kind::Text).unwrap(), "[draft] text.txt");
    }

    #[test]
    fn a_number_reads_back_as_the_same() {
        for number in [3e-3, 1e-10, 0.1 + 0.2, 1.0, f64::MIN_POSITIVE] {
            let text = Value::number(number).to_string();
            let read = of(&text).spelt(Kind::Number).unwrap();
            assert_eq!(read.parse::<f64>().unwrap().to_bits(), number.to_bits());
        }
    }
}
