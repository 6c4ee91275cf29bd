//! Training data.

mod prefetch;
mod text;

pub use prefetch::Prefetch;
pub use text::{Sampler, Split, TextError, TextSet, Windows};

/// The text of *Moby-Dick* (1851, public domain), which training uses by default.
pub const MOBY_DICK: &str = include_str!("../../examples/data/moby-dick/moby-dick.txt");
