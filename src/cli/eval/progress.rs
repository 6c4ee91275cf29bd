//! Progress display of an evaluation.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Progress bar of batches on a terminal; hidden elsewhere. Dropping it clears the bar.
#[derive(Debug)]
pub(crate) struct Batches(ProgressBar);

impl Batches {
    pub(crate) fn new(all: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{pos}/{len} {bar:12} batches, {elapsed}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(all as u64).with_style(style))
    }

    /// Counts one more batch.
    pub(crate) fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
