//! Stages of a [`Dataset`](super::Dataset) chain.

mod buckets;
mod cache;
mod drawn;
mod file_cache;
mod filter;
mod flat_map;
mod joined;
mod map;
mod ordered;
mod orders;
mod packed;
mod part;
mod plan;
mod range;
mod shuffle;
mod walk;
mod window;
mod zip;

pub use buckets::Buckets;
pub use cache::MemoryCache;
pub use drawn::{Drawn, Weighted};
pub use file_cache::FileCache;
pub use flat_map::{FlatMap, Unbatch};
pub use joined::Joined;
pub use map::{Map, MapRandom};
pub use ordered::{Order, Ordered};
pub use orders::{Repeat, Stride, Subset};
pub use packed::{Packing, Windowed};
pub use part::RandomPart;
pub use range::Range;
pub use shuffle::Shuffle;
pub use window::{Packed, PackedBatch};
pub use zip::Zip;
