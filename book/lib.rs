//! The book's pages as doc tests: `cargo test` compiles and runs their code blocks.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("src/first-program.md")]
    struct FirstProgram;
    #[doc = include_str!("src/exported.md")]
    struct Exported;
    #[doc = include_str!("src/planning.md")]
    struct Planning;
    #[doc = include_str!("src/timeline.md")]
    struct Timeline;
    #[doc = include_str!("src/use.md")]
    struct Use;
    #[doc = include_str!("src/real-models.md")]
    struct RealModels;
    #[doc = include_str!("src/training.md")]
    struct Training;
    #[doc = include_str!("src/bring.md")]
    struct Bring;
    #[doc = include_str!("src/data.md")]
    struct Data;
    #[doc = include_str!("src/held-back.md")]
    struct HeldBack;
    #[doc = include_str!("src/precision.md")]
    struct Precision;
    #[doc = include_str!("src/cuda-programs.md")]
    struct CudaPrograms;
    #[doc = include_str!("src/streams.md")]
    struct Streams;
    #[doc = include_str!("src/models.md")]
    struct Models;
    #[doc = include_str!("src/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("src/files.md")]
    struct Files;
    #[doc = include_str!("src/your-crate.md")]
    struct YourCrate;
    #[doc = include_str!("src/trainer.md")]
    struct Trainer;
    #[doc = include_str!("src/numbers.md")]
    struct Numbers;
    #[doc = include_str!("src/add-schedule.md")]
    struct AddSchedule;
    #[doc = include_str!("src/engine.md")]
    struct Engine;
    #[doc = include_str!("src/micro-batch.md")]
    struct MicroBatch;
    #[doc = include_str!("src/extending.md")]
    struct Extending;
    #[doc = include_str!("src/inputs.md")]
    struct Inputs;
    #[doc = include_str!("src/memory.md")]
    struct Memory;
    #[doc = include_str!("src/partitions.md")]
    struct Partitions;
    #[doc = include_str!("src/choose.md")]
    struct Choose;
    #[doc = include_str!("src/pipelines.md")]
    struct Pipelines;
    #[doc = include_str!("src/trouble.md")]
    struct Trouble;
}
