//! How values are read from text, and how they are written back.

use std::path::PathBuf;

use clap::builder::PathBufValueParser;
use clap::{Arg, ArgAction, ArgMatches};

use super::{Kind, Value};

/// How the values of a setting are read and written, for flags, files and the environment alike.
pub(crate) trait Form: Clone + Send + Sync + 'static {
    /// The parsed type.
    type Value: Clone + Send + Sync + 'static;

    /// The kind of value in a file.
    fn kind(&self) -> Kind;

    /// Reads a value as a flag spells it.
    ///
    /// # Errors
    /// The text is not a valid value; the error says which values are.
    fn parse(&self, text: &str) -> Result<Self::Value, String>;

    /// The value as written to a file; `None` if it is left out.
    fn write(&self, value: &Self::Value) -> Option<Value>;

    /// Configures a flag that takes such values.
    fn arg(&self, arg: Arg) -> Arg;

    /// Returns the value that clap has parsed.
    fn taken(&self, matches: &ArgMatches, id: &str) -> Option<Self::Value> {
        matches.get_one(id).cloned()
    }

    /// The default as shown in help.
    fn default_text(&self, default: &Self::Value) -> Option<String> {
        Some(self.write(default)?.short())
    }
}

/// A single value.
#[derive(Debug)]
pub(crate) struct One<V: 'static> {
    pub(crate) kind: Kind,
    pub(crate) parse: fn(&str) -> Result<V, String>,
    pub(crate) write: fn(&V) -> Value,
}

impl<V> Clone for One<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for One<V> {}

impl<V: Clone + Send + Sync + 'static> Form for One<V> {
    type Value = V;

    fn kind(&self) -> Kind {
        self.kind
    }

    fn parse(&self, text: &str) -> Result<V, String> {
        (self.parse)(text)
    }

    fn write(&self, value: &V) -> Option<Value> {
        Some((self.write)(value))
    }

    fn arg(&self, arg: Arg) -> Arg {
        // `-1` and `-1e-3`, which clap takes for flags, are values for the parser to refuse with its reason.
        arg.allow_negative_numbers(matches!(self.kind, Kind::Whole | Kind::WholeOrAuto))
            .allow_hyphen_values(self.kind == Kind::Number)
            .value_parser(self.parse)
    }
}

/// A comma-separated list; files omit an empty one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<F>(pub(crate) F);

impl<F: Form> Form for List<F> {
    type Value = Vec<F::Value>;

    fn kind(&self) -> Kind {
        Kind::List
    }

    fn parse(&self, text: &str) -> Result<Self::Value, String> {
        text.split(',').map(|item| self.0.parse(item)).collect()
    }

    fn write(&self, values: &Self::Value) -> Option<Value> {
        let items: Vec<Value> = values.iter().filter_map(|own| self.0.write(own)).collect();
        (!items.is_empty()).then_some(Value::List(items))
    }

    fn arg(&self, arg: Arg) -> Arg {
        let arg = self.0.arg(arg);
        arg.value_delimiter(',').action(ArgAction::Append)
    }

    fn taken(&self, matches: &ArgMatches, id: &str) -> Option<Self::Value> {
        Some(matches.get_many(id)?.cloned().collect())
    }
}

/// An optional value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Optional<F>(pub(crate) F);

impl<F: Form> Form for Optional<F> {
    type Value = Option<F::Value>;

    fn kind(&self) -> Kind {
        self.0.kind()
    }

    fn parse(&self, text: &str) -> Result<Self::Value, String> {
        self.0.parse(text).map(Some)
    }

    fn write(&self, value: &Self::Value) -> Option<Value> {
        self.0.write(value.as_ref()?)
    }

    fn arg(&self, arg: Arg) -> Arg {
        self.0.arg(arg)
    }

    fn taken(&self, matches: &ArgMatches, id: &str) -> Option<Self::Value> {
        self.0.taken(matches, id).map(Some)
    }
}

/// A number or none, given as 0, so that a value from a file can be unset.
#[derive(Debug)]
pub(crate) struct UnlessZero<V: 'static>(pub(crate) One<V>);

impl<V> Clone for UnlessZero<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for UnlessZero<V> {}

impl<V: Clone + Send + Sync + 'static> Form for UnlessZero<V> {
    type Value = Option<V>;

    fn kind(&self) -> Kind {
        self.0.kind()
    }

    fn parse(&self, text: &str) -> Result<Self::Value, String> {
        match text.trim().parse() {
            Ok(0.0) => Ok(None),
            _ => self
                .0
                .parse(text)
                .map(Some)
                .map_err(|why| format!("{why}, or 0 for none")),
        }
    }

    fn write(&self, value: &Self::Value) -> Option<Value> {
        self.0.write(value.as_ref()?)
    }

    fn arg(&self, arg: Arg) -> Arg {
        let own = *self;
        self.0
            .arg(arg)
            .value_parser(move |text: &str| own.parse(text))
    }
}

/// A boolean; the flag without a value means true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth;

impl Form for Truth {
    type Value = bool;

    fn kind(&self) -> Kind {
        Kind::Truth
    }

    fn parse(&self, text: &str) -> Result<bool, String> {
        let truth = text.trim().parse();
        truth.map_err(|_| "must be true or false".to_owned())
    }

    fn write(&self, value: &bool) -> Option<Value> {
        Some(Value::Truth(*value))
    }

    fn arg(&self, arg: Arg) -> Arg {
        arg.value_parser(|text: &str| Truth.parse(text))
            .default_missing_value("true")
            .num_args(0..=1)
            .require_equals(true)
    }
}

/// A boolean that defaults to false; the flag takes no value, and files omit it when false.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch;

impl Form for Switch {
    type Value = bool;

    fn kind(&self) -> Kind {
        Kind::Truth
    }

    fn parse(&self, text: &str) -> Result<bool, String> {
        Truth.parse(text)
    }

    fn write(&self, value: &bool) -> Option<Value> {
        value.then_some(Value::Truth(true))
    }

    fn arg(&self, arg: Arg) -> Arg {
        arg.action(ArgAction::SetTrue)
    }
}

/// A path of a file or a folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePath;

impl Form for FilePath {
    type Value = PathBuf;

    fn kind(&self) -> Kind {
        Kind::Text
    }

    fn parse(&self, text: &str) -> Result<PathBuf, String> {
        Ok(PathBuf::from(text))
    }

    fn write(&self, path: &PathBuf) -> Option<Value> {
        Some(Value::Text(path.to_string_lossy().into_owned()))
    }

    fn arg(&self, arg: Arg) -> Arg {
        arg.value_parser(PathBufValueParser::new())
    }
}
