//! Pipeline model parallelism for libtorch.
pub mod engine;
