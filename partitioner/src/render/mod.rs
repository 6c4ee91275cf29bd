//! Timelines for the eye: one exporter a file.

mod grid;
mod text;
mod trace;

pub use grid::grid;
pub use text::text;
pub use trace::chrome_trace;
