//! Configuration in layers: TOML files < the environment < `--set` < flags.
//!
//! A verb describes each of its settings once, in a row of a table ([`settings!`]): the field,
//! its type and default, the key, the flag, and what goes with them. From these rows, a
//! [`Schema`], come the flags and their help, the reading of every [`ConfigLayer`], errors
//! that say where a value stands and what was meant, and the resolved configuration as a
//! file that is itself a layer.

mod diff;
mod environment;
mod file;
mod flags;
pub(super) mod form;
mod key;
mod layers;
mod resolve;
mod row;
mod schema;
mod value;
pub(super) mod values;

use std::fmt;
use std::path::PathBuf;

pub(super) use diff::{diff, fixed};
pub(super) use flags::{Flags, GivenFlag, HasFlags};
pub(super) use key::{Assign, Key, OnResume};
pub(super) use layers::{Sources, layers};
pub(super) use resolve::{Origins, resolve};
pub(super) use row::{Row, Slot, settings};
pub use schema::ConfigKey;
pub(super) use schema::{Schema, toml};
pub(super) use value::{Kind, Value};

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Lines count from 1.
    File { path: PathBuf, line: usize },
    /// The variable's name.
    Environment(String),
    /// The argument of `--set`.
    Set(String),
    /// Such as `--steps`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) | Self::Flag(name) => f.write_str(name),
            Self::Set(setting) => write!(f, "--set {setting}"),
        }
    }
}

/// A value and its origin.
#[derive(Debug)]
pub(super) struct Entry<T> {
    /// Such as `train.steps`.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
    /// The parsed value, if it comes from a flag.
    pub(super) read: Option<Assign<T>>,
}

/// The entries of one source; a later entry of a key replaces an earlier one.
pub(super) type ConfigLayer<T> = Vec<Entry<T>>;
