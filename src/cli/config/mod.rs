//! Configuration in layers: TOML files < the environment < `--set` < flags.
//!
//! A verb describes its keys once, in a [`Schema`]: name, type, the flag that says the
//! same, how to set it and how to read it back. From that come the reading of every
//! [`ConfigLayer`], errors that say where a value stands and what was meant, and the resolved
//! configuration as a file that is itself a layer.

mod environment;
mod file;
mod key;
#[cfg(test)]
mod listing;
mod resolve;
mod schema;
mod set;
mod value;
mod write;

use std::fmt;
use std::path::PathBuf;

pub(super) use environment::environment;
pub(super) use file::file;
pub(super) use key::Key;
pub(super) use resolve::{Origins, resolve};
pub(super) use schema::Schema;
pub(super) use set::set;
pub(super) use value::{Kind, Value};
pub(super) use write::{lines, toml};

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Lines count from 1.
    File { path: PathBuf, line: usize },
    /// The variable's name.
    Environment(String),
    /// What stands behind `--set`.
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

/// A value, and where it was given.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// Such as `train.steps`.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// What one source says; a later entry of a key takes the place of an earlier one.
pub(super) type ConfigLayer = Vec<Entry>;
