//! One thing that can be chosen.

use std::fmt;

use super::{Kind, Value};

type Set<T> = dyn Fn(&mut T, &str) -> Result<(), String>;
type Get<T> = dyn Fn(&T) -> Option<Value>;
type Keep<T> = dyn Fn(&T, &T) -> bool;

/// A key of a configuration that becomes a `T`.
pub(in crate::cli) struct Key<T> {
    /// With its table: `train.steps`.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The flag that says the same.
    pub(super) flag: Option<Flag>,
    pub(super) set: Box<Set<T>>,
    pub(super) get: Box<Get<T>>,
    pub(super) beside: Option<Beside<T>>,
}

/// A flag of the command line.
#[derive(Debug)]
pub(super) struct Flag {
    /// Where clap keeps it.
    pub(super) id: String,
    /// As a person writes it: `--steps`.
    pub(super) written: String,
}

/// When a value from a lower layer no longer holds.
pub(super) struct Beside<T> {
    /// The keys that it was chosen for.
    pub(super) keys: &'static [&'static str],
    /// Whether it still fits after a higher layer, given before and after it.
    pub(super) keep: Box<Keep<T>>,
    pub(super) reset: Box<dyn Fn(&mut T)>,
}

impl<T: 'static> Key<T> {
    /// A key that is set from the text that a flag would take, and read back.
    pub(in crate::cli) fn new(
        name: impl Into<String>,
        kind: Kind,
        set: impl Fn(&mut T, &str) -> Result<(), String> + 'static,
        get: impl Fn(&T) -> Option<Value> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            kind,
            flag: None,
            set: Box::new(set),
            get: Box::new(get),
            beside: None,
        }
    }

    /// The flag that says the same, by clap's name for it.
    #[must_use]
    pub(in crate::cli) fn flag(self, id: &str) -> Self {
        self.flag_called(id, format!("--{}", id.replace('_', "-")))
    }

    /// The same of a flag that is written in another way than clap keeps it.
    #[must_use]
    pub(in crate::cli) fn flag_called(mut self, id: &str, written: String) -> Self {
        let id = id.to_owned();
        self.flag = Some(Flag { id, written });
        self
    }

    /// Says that a value was chosen for those of other `keys`: where a higher layer
    /// changes one of them so that the value does not fit any more (`keep`, given what
    /// held before and after that layer), it is `reset` rather than an obstacle.
    #[must_use]
    pub(in crate::cli) fn beside(
        mut self,
        keys: &'static [&'static str],
        keep: impl Fn(&T, &T) -> bool + 'static,
        reset: impl Fn(&mut T) + 'static,
    ) -> Self {
        self.beside = Some(Beside {
            keys,
            keep: Box::new(keep),
            reset: Box::new(reset),
        });
        self
    }

    /// `train` of `train.steps`.
    pub(super) fn table(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// `steps` of `train.steps`.
    pub(super) fn own(&self) -> &str {
        self.name.split_once('.').map_or("", |(_, own)| own)
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("flag", &self.flag)
            .finish_non_exhaustive()
    }
}
