//! What a person sees while a model is judged.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Batches that are done of all, on a terminal; nothing elsewhere. It is gone when this is dropped.
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

    /// One more is done.
    pub(crate) fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
