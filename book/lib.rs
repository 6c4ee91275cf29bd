//! The book's pages as doc tests: a code block that does not compile and run fails `cargo test`.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("src/introduction.md")]
    struct Introduction;
    #[doc = include_str!("src/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("src/deciding.md")]
    struct Deciding;
    #[doc = include_str!("src/profiling.md")]
    struct Profiling;
    #[doc = include_str!("src/timeline.md")]
    struct Timeline;
    #[doc = include_str!("src/use.md")]
    struct Use;
    #[doc = include_str!("src/real-models.md")]
    struct RealModels;
    #[doc = include_str!("src/data.md")]
    struct Data;
    #[doc = include_str!("src/precision.md")]
    struct Precision;
    #[doc = include_str!("src/cuda.md")]
    struct Cuda;
    #[doc = include_str!("src/models.md")]
    struct Models;
    #[doc = include_str!("src/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("src/files.md")]
    struct Files;
    #[doc = include_str!("src/your-crate.md")]
    struct YourCrate;
    #[doc = include_str!("src/numbers.md")]
    struct Numbers;
}
