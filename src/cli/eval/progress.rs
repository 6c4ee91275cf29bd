//! What a person sees while a model is judged.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Batches that are done, on a terminal; nothing elsewhere. It is gone when this is dropped.
#[derive(Debug)]
pub(in crate::cli) struct Batches(ProgressBar);

impl Batches {
    pub(in crate::cli) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("batch {pos}, {elapsed}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        Self(ProgressBar::new_spinner().with_style(style))
    }

    /// One more is done.
    pub(in crate::cli) fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
