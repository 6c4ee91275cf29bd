//! What a [`Dataset`](super::Dataset) is a chain of.

mod cache;
mod file_cache;
mod map;
mod part;
mod range;
mod shuffle;
mod zip;

pub use cache::MemoryCache;
pub use file_cache::FileCache;
pub use map::{Map, MapRandom};
pub use part::RandomPart;
pub use range::Range;
pub use shuffle::Shuffle;
pub use zip::Zip;
