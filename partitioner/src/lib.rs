//! Everything about a pipeline that is decided before a tensor exists.
#![forbid(unsafe_code)]
