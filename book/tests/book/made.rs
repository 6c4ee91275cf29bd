//! Parts of pages that are generated from code.

use std::fs;

use clap::Command;
use gpipe::models::zoo::Zoo;

use crate::pages::src;

/// Markers around a page's generated part.
const BEGIN: &str = "<!-- made by `make pages`, do not edit -->\n";
const END: &str = "<!-- end -->";

/// Checks that a page's generated part equals `made`, or writes it if requested.
#[track_caller]
pub(crate) fn assert_current(page: &str, made: &str) {
    let path = src().join(page);
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
pub(crate) fn gpipe() -> Command {
    gpipe::cli::command(&Zoo::builtin()).unwrap()
}

/// Formats the program's text as a table cell.
pub(crate) fn cell(text: &str) -> String {
    assert!(!text.contains("`<"), "a code span with `<`: {text}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ").replace('|', "\\|").replace('<', "&lt;");
    // In a code span a backslash would be shown.
    let spans = text.split('`').enumerate();
    let spans = spans.map(|(at, span)| {
        if at % 2 == 0 {
            span.replace('*', "\\*")
        } else {
            span.to_owned()
        }
    });
    spans.collect::<Vec<_>>().join("`")
}

/// Likewise, with a full stop at the end.
pub(crate) fn sentence(text: &str) -> String {
    let text = cell(text);
    match text.chars().last() {
        None | Some('.') => text,
        Some(_) => text + ".",
    }
}
