//! One thing that can be chosen.

use std::fmt;
use std::sync::Arc;

use clap::{Arg, ArgMatches};

use super::{Kind, Value};
use gpipe_torch::{PipelineBuilder, Setting};

/// A key of a configuration that becomes a `T`, with everything that is known of it.
pub(crate) struct Key<T> {
    /// With its table: `train.steps`.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// What it is, in a sentence or two.
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

/// Reads a value from the text that a flag would take.
pub(super) type Parse<T> = dyn Fn(&str) -> Result<Assign<T>, String>;
/// The value as files have it.
pub(super) type Get<T> = dyn Fn(&T) -> Option<Value>;
/// Whether a value still fits, given the configuration before and after a layer.
pub(super) type Keep<T> = dyn Fn(&T, &T) -> bool;
/// Asks a pipeline for what the configuration says.
pub(super) type Apply<T> = dyn Fn(PipelineBuilder, &T) -> PipelineBuilder;

/// The value that clap has read of a flag, if the flag is there.
pub(super) type Taken<T> = dyn Fn(&ArgMatches) -> Option<Assign<T>>;

/// A value that has been read, on its way into a configuration.
pub(crate) struct Assign<T>(Arc<dyn Fn(&mut T) + Send + Sync>);

/// The flag that says the same as a key.
pub(super) struct Flag<T> {
    /// Where clap keeps it.
    pub(super) id: String,
    /// As a person writes it: `--steps`.
    pub(super) written: String,
    /// None where another one makes it.
    pub(super) arg: Option<Arg>,
    /// The value that clap has read.
    pub(super) taken: Box<Taken<T>>,
}

/// What another value means for a run that resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnResume {
    /// No number changes by it, or the run is meant to have it anew.
    Free,
    /// Losses change from there on, which is said.
    Noted,
    /// The saved state is of it: with another there is nothing to resume from.
    Fixed,
}

/// What it sets of a pipeline.
pub(super) struct Sets<T> {
    pub(super) setting: Setting,
    pub(super) apply: Box<Apply<T>>,
}

/// The values of another key with which alone a key means something.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyFor {
    pub(super) key: &'static str,
    pub(super) values: &'static [&'static str],
}

/// When a value from a lower layer no longer holds.
pub(super) struct Beside<T> {
    /// The keys that it was chosen for.
    pub(super) keys: Vec<&'static str>,
    /// Whether it still fits after a higher layer; without it, whether those keys are as
    /// they were.
    pub(super) keep: Option<Box<Keep<T>>>,
    /// Back to the default.
    pub(super) reset: Assign<T>,
}

impl<T: 'static> Key<T> {
    /// A number with a flag that another one makes, by clap's name for it and as it is
    /// written. It was chosen for the key `beside`, and is `reset` where that changes.
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
