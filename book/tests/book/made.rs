//! What the book says about the command line is held against the command line.
//!
//! Pages that are made from code are compared with what the code makes;
//! `make pages` (or `GPIPE_WRITE_PAGES=1 cargo test`) writes them anew.

mod commands;
mod reference;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

pub(super) use reference::sentence;

use super::command;
use crate::models::zoo::Zoo;

/// A file of the repository.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Between these a page has what is made.
const BEGIN: &str = "<!-- made by `make pages`, do not edit -->\n";
const END: &str = "<!-- end -->";

/// Fails unless what is made in a page of the book is `made`, or writes it where that is
/// asked for.
#[track_caller]
pub(super) fn assert_current(page: &str, made: &str) {
    let path = file("book/src").join(page);
    let written = fs::read_to_string(&path).unwrap();
    let (before, rest) = written.split_once(BEGIN).unwrap();
    let (there, after) = rest.split_once(END).unwrap();
    let made = format!("\n{}\n\n", made.trim());
    if std::env::var_os("GPIPE_WRITE_PAGES").is_some() {
        fs::write(&path, [before, BEGIN, &made, END, after].concat()).unwrap();
        return;
    }
    let mut lines = there.lines().zip(made.lines());
    let first = lines.find(|(old, new)| old != new);
    assert!(
        there == made,
        "book/src/{page} is not what the program says; run `make pages`: {first:?}"
    );
}

/// The command line with the built-in models.
fn gpipe() -> Command {
    command::build(&["gpipe-rs".into()], &Zoo::builtin()).unwrap()
}
