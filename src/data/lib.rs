//! Training data: from files to batches on a device.
//!
//! A [`Source`] has indexed items; a [`Dataset`] chains their transformations; its [`Batches`]
//! configure loading; a [`Loader`] gives the batches, made ahead of their use on its own threads,
//! always in the same order.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arrays;
#[cfg(feature = "parquet")]
mod columns;
mod dataset;
mod diagnosis;
mod disk_file;
mod error;
mod idx;
mod items;
mod iterated;
mod lines;
mod loader;
mod magic;
#[cfg(feature = "object-store")]
mod objects;
mod padding;
mod random;
mod room;
mod rows;
mod samples;
mod source;
mod stack;
mod stacked_rows;
mod stages;
mod store;
mod tar;
mod text;
pub mod tf_record;
mod tokenizer;
mod tokens;

pub use arrays::Array;
#[cfg(feature = "parquet")]
pub use columns::{ColumnRow, Columns};
pub use dataset::Dataset;
pub use diagnosis::waiting;
pub use diagnosis::{Change, Diagnosis, InputMeasures, Limit, Phase, PhaseTime, Remedy};
pub use error::{DataError, Place};
pub use idx::Idx;
pub use items::Zip3;
pub use iterated::Iterated;
pub use lines::{Csv, Lines, Record};
pub use loader::{Batches, HowMany, Loader, Mark};
#[cfg(feature = "object-store")]
pub use objects::{Fetched, Object, Objects};
pub use padding::{Padded, pad};
pub use random::Random;
pub use rows::Rows;
pub use samples::ImageFolder;
pub use samples::checks::Check;
pub use samples::{Field, Moments, Part, Several, cells, not_finite};
pub use samples::{Missing, Normalise, SampleOptions, Samples};
pub use source::{Each, Gathered, Made, Source};
pub use stack::{Number, OnDevice, Stack, Stacking};
pub use stacked_rows::Row;
pub use stages::{
    Buckets, Drawn, FileCache, FlatMap, Joined, Map, MapRandom, MemoryCache, Order, Ordered,
    Packed, PackedBatch, Packing, RandomPart, Range, Repeat, Shuffle, Stride, Subset, Unbatch,
    Weighted, Windowed, Zip,
};
pub use store::Store;
pub use tar::{TarItem, Tars};
pub use text::{Sampler, Split, TextError, TextSet, Windows};
pub use tf_record::{Example, ExampleError, TfRecordWriter, TfRecords};
pub use tokenizer::{TextStream, Tokenizer};
pub use tokens::{Documents, RandomWindows, RowOfWindows, Tokens};

/// The text of *Moby-Dick* (1851, public domain), the default training data.
pub const MOBY_DICK: &str = include_str!("moby-dick.txt");
