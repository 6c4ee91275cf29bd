//! Timelines for the eye: one exporter a file.

mod grid;
mod html;
mod svg;
mod text;
mod trace;

pub use grid::grid;
pub use html::html;
pub use svg::svg;
pub use text::text;
pub use trace::chrome_trace;
