//! TFRecord shards, as TensorFlow writes them.

mod blocks;
mod decompressed;
mod example;
pub mod frame;
mod framed;
mod index;
mod records;
mod saved;
mod writer;

pub use example::{Example, ExampleError};
pub use records::TfRecords;
pub use writer::TfRecordWriter;

pub(super) use framed::read_record;
