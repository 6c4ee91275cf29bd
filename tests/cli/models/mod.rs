//! `profile` and `train` for every model.

mod files;
pub(crate) mod own;
mod text;
mod tokens;
mod wrong_use;
mod zoo;

use std::path::Path;

use serde_json::Value;

use crate::run::{config, gpipe, losses, printed};

#[track_caller]
fn as_json(folder: &Path, args: &[&str]) -> Value {
    let text = printed(folder, &[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"))
}
