//! A key of a configuration.

use std::fmt;
use std::sync::Arc;

use clap::{Arg, ArgMatches};

use super::{Kind, Value};
use gpipe_torch::{PipelineBuilder, Setting};

/// A key of a configuration of type `T`, with its description, flag, parser and rules.
pub(crate) struct Key<T> {
    /// The full name, with its table: `train.steps`.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Description in a sentence or two.
    pub(super) about: String,
    pub(super) flag: Option<Flag<T>>,
    pub(super) parse: Box<Parse<T>>,
    pub(super) get: Box<Get<T>>,
    /// Whether the default follows from other settings.
    pub(super) by_case: bool,
    pub(super) on_resume: OnResume,
    pub(super) only_for: Option<OnlyFor>,
    pub(super) beside: Option<Beside<T>>,
    /// The default, where files do not have it.
    pub(super) hidden_default: Option<Value>,
    pub(super) sets: Option<Sets<T>>,
}

/// Parses a value from a flag's text.
pub(super) type Parse<T> = dyn Fn(&str) -> Result<Assign<T>, String>;
/// Returns the value as written to a file.
pub(super) type Get<T> = dyn Fn(&T) -> Option<Value>;
/// Whether a value still fits, given the configuration before and after a layer.
pub(super) type Keep<T> = dyn Fn(&T, &T) -> bool;
/// Applies the configuration's value to a pipeline builder.
pub(super) type Apply<T> = dyn Fn(PipelineBuilder, &T) -> PipelineBuilder;

/// Returns the value that clap has parsed, if the flag was given.
pub(super) type Taken<T> = dyn Fn(&ArgMatches) -> Option<Assign<T>>;

/// A parsed value, ready to be assigned to a configuration.
pub(crate) struct Assign<T>(Arc<dyn Fn(&mut T) + Send + Sync>);

/// The flag of a key.
pub(super) struct Flag<T> {
    /// clap's id of the flag.
    pub(super) id: String,
    /// As written on a command line: `--steps`.
    pub(super) written: String,
    /// `None` if another flag's definition creates it.
    pub(super) arg: Option<Arg>,
    /// Returns the value that clap has parsed.
    pub(super) taken: Box<Taken<T>>,
}

/// How a changed value affects a resumed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnResume {
    /// No result changes, or the value is meant to change.
    Free,
    /// Losses change from there on; a note says so.
    Noted,
    /// The saved state depends on the value: a run cannot resume with another one.
    Fixed,
}

/// The pipeline setting that a key sets.
pub(super) struct Sets<T> {
    pub(super) setting: Setting,
    pub(super) apply: Box<Apply<T>>,
}

/// The values of another key that a key is limited to.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyFor {
    pub(super) key: &'static str,
    pub(super) values: &'static [&'static str],
}

/// When a value from a lower layer becomes invalid.
pub(super) struct Beside<T> {
    /// The keys that the value was chosen for.
    pub(super) keys: Vec<&'static str>,
    /// Whether the value is still valid after a higher layer; if absent, it is valid while those keys
    /// are unchanged.
    pub(super) keep: Option<Box<Keep<T>>>,
    /// Resets the value to the default.
    pub(super) reset: Assign<T>,
}

impl<T: 'static> Key<T> {
    /// A numeric key whose flag is defined elsewhere, with clap's id and the written form of the flag.
    /// The value is `reset` if the key `beside` changes.
    pub(crate) fn of_foreign_flag(
        name: String,
        (id, written): (String, String),
        parse: impl Fn(&str) -> Assign<T> + 'static,
        get: impl Fn(&T) -> Option<Value> + 'static,
        (beside, reset): (&'static str, Assign<T>),
    ) -> Self {
        Self {
            name,
            kind: Kind::Number,
            about: String::new(),
            flag: Some(Flag {
                id,
                written,
                arg: None,
                taken: Box::new(|_| None),
            }),
            parse: Box::new(move |text| Ok(parse(text))),
            get: Box::new(get),
            by_case: false,
            on_resume: OnResume::Fixed,
            only_for: None,
            beside: Some(Beside {
                keys: vec![beside],
                keep: None,
                reset,
            }),
            hidden_default: None,
            sets: None,
        }
    }

    /// `train` of `train.steps`.
    pub(crate) fn table(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// `steps` of `train.steps`.
    pub(super) fn own(&self) -> &str {
        self.name.split_once('.').map_or("", |(_, own)| own)
    }
}

impl<T> Assign<T> {
    pub(crate) fn new(assign: impl Fn(&mut T) + Send + Sync + 'static) -> Self {
        Self(Arc::new(assign))
    }

    pub(super) fn to(&self, config: &mut T) {
        (self.0)(config);
    }
}

impl<T> Clone for Assign<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Assign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assign").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
