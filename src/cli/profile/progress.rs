//! What a person at a terminal sees while layers are measured.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::ProfileProgress;

/// A line that is written over, with each piece of news: a clock of its own would need a
/// thread, and panic where there is none. Nothing where there is no terminal.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    bar: Option<ProgressBar>,
    names: &'a [&'a str],
    /// What is measured.
    what: Mutex<String>,
}

impl<'a> Progress<'a> {
    /// For layers of these names.
    pub(super) fn new(names: &'a [&'a str]) -> Self {
        Self {
            bar: std::io::stderr().is_terminal().then(bar),
            names,
            what: Mutex::default(),
        }
    }

    pub(super) fn tell(&self, at: ProfileProgress) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.words(at));
        }
    }

    fn words(&self, at: ProfileProgress) -> String {
        let mut what = self.what.lock();
        match at {
            ProfileProgress::Layers { from, to, of } if to == from + 1 => {
                *what = format!("layer {to} of {of}, `{}`", self.names[from]);
                format!("{what}: first run")
            }
            ProfileProgress::Layers { of, .. } => {
                *what = format!("{of} layers");
                format!("{what}: first run")
            }
            ProfileProgress::WarmedUp => format!("{what}: first round"),
            ProfileProgress::Round { rounds, sure_to } if sure_to.is_finite() => {
                format!("{what}: round {rounds}, sure to {:.1} %", 100.0 * sure_to)
            }
            ProfileProgress::Round { rounds, .. } => format!("{what}: round {rounds}"),
        }
    }

    /// Takes the line away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed} {wide_msg}");
    let bar = ProgressBar::new_spinner();
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_where_they_are_measured_one_by_one() {
        let names = ["embed", "block.0"];
        let progress = Progress::new(&names);
        let (from, to, of) = (1, 2, 2);
        let words = progress.words(ProfileProgress::Layers { from, to, of });
        assert_eq!(words, "layer 2 of 2, `block.0`: first run");
        let (rounds, sure_to) = (3, 0.0412);
        let words = progress.words(ProfileProgress::Round { rounds, sure_to });
        assert_eq!(words, "layer 2 of 2, `block.0`: round 3, sure to 4.1 %");
        let words = progress.words(ProfileProgress::Layers { from: 0, to, of });
        assert_eq!(words, "2 layers: first run");
    }
}
