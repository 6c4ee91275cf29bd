//! Pipeline model parallelism for libtorch.
