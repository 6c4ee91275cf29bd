//! The list of lines that are not run unchanged: `documented.toml`.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;

use super::pages::{Line, root};

/// Contents of `documented.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    /// Variables that keep runs small where a line sets no size.
    pub(super) small: toml::Table,
    /// Files that pages take for granted, and the commands that create them.
    pub(super) given: toml::Table,
    /// Values for placeholders in the commands of messages.
    pub(super) fill: toml::Table,
    exception: Vec<Exception>,
}

/// Lines that are not run, not run here, or end with an error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    /// Beginning of these lines.
    start: String,
    /// Whether the beginning is the whole line.
    #[serde(default)]
    whole: bool,
    reason: String,
    #[serde(default)]
    pub(super) how: How,
    #[serde(skip)]
    used: AtomicUsize,
}

/// Treatment of a line that is not simply run to success.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    /// Checked as far as possible without running it.
    #[default]
    Checked,
    /// `.ci/run` runs it.
    Ci,
    /// Runs if this program is present, and is checked otherwise.
    Needs(String),
    /// Runs, and ends with this exit code.
    Ends(i32),
}

impl List {
    pub(super) fn read() -> Self {
        let path = root().join("tests/cli/documented/documented.toml");
        toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    /// The exception that matches a line: the one with the longest beginning.
    pub(super) fn of(&self, line: &Line) -> Option<&Exception> {
        let found = self.exception.iter().filter(|exception| {
            let rest = line.text.strip_prefix(&exception.start);
            rest.is_some_and(|rest| {
                rest.is_empty() || !exception.whole && rest.starts_with([' ', '\n', '/', ','])
            })
        });
        let found = found.max_by_key(|exception| exception.start.len())?;
        found.used.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Prints every exception with its reason and the number of its lines.
    ///
    /// # Panics
    /// An exception matches no line, and is obsolete.
    pub(super) fn told(&self) {
        for exception in &self.exception {
            let used = exception.used.load(Ordering::Relaxed);
            println!(
                "{used:4}  {} ({:?}): {}",
                exception.start, exception.how, exception.reason
            );
        }
        let unused = self
            .exception
            .iter()
            .filter(|exception| exception.used.load(Ordering::Relaxed) == 0);
        let unused: Vec<_> = unused.map(|exception| &exception.start).collect();
        assert!(
            unused.is_empty(),
            "no line begins with {unused:?}: leave it out of documented.toml"
        );
    }
}
