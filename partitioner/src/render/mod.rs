//! Timelines for the eye: one exporter a file.

mod compare;
mod grid;
mod html;
mod svg;
mod text;
mod trace;

pub use compare::{compare_html, compare_svg, compare_text};
pub use grid::grid;
pub use html::html;
pub use svg::svg;
pub use text::text;
pub use trace::chrome_trace;
