//! Training runs, from the first step to the last, with resuming after interruptions.
//!
//! A [`Trainer`] takes a pipeline, an optimizer, batches and a loss function. It maintains a run
//! folder: metrics of every step as JSON lines and for TensorBoard, checkpoints, the last step's trace,
//! and the caller's configuration. It ends early if a [`Stop`] or a signal requests it, and resumes
//! with the same bits.
//!
//! ```
//! use gpipe::data::{Dataset, Made};
//! use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
//! use gpipe::train::{LogLines, Trainer};
//! use gpipe::{Optimizer, Pipeline, Sequential, optim::AdamW};
//!
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path().join("run");
//! let model = Sequential::new().layer("line", |p| nn::linear(p, 2, 1, Default::default()));
//! let mut pipe = Pipeline::new(model, &[Device::Cpu], 2)?;
//! let mut optimizer = Optimizer::new(AdamW { lr: 1e-2, ..AdamW::default() });
//! let data = Dataset::new(Made::new(64, |i| {
//!     let x = Tensor::from_slice(&[i as f32 / 64.0, 1.0]);
//!     let y = x.sum_dim_intlist([0].as_slice(), true, Kind::Float);
//!     Ok((x, y))
//! }));
//! let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
//!
//! let held_out = data.clone();
//! let batches = data.shuffle(usize::MAX, 1).batch(16).endless();
//! let outcome = Trainer::builder(&mut pipe, &mut optimizer, batches, loss)
//!     .steps(20)
//!     .evaluate_every(5, || held_out.clone().batch(16))
//!     .folder(&folder) // and later: .resume(true)
//!     .hook(LogLines::stderr(10))
//!     .build()?
//!     .run()?;
//! let numbers = outcome.summary();
//! assert_eq!(numbers.steps, 20);
//! assert!(numbers.loss_last < numbers.loss_first);
//! println!("best after step {:?}", numbers.best_step);
//! outcome.files?; // whether all of them could be written
//! # Ok::<(), anyhow::Error>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod builder;
pub mod checkpoint;
mod checkpoints;
mod cut;
mod error;
mod evaluation;
mod feed;
mod folder;
mod graphs;
mod held_out;
mod hook;
mod leader;
pub mod metrics;
mod outcome;
mod report;
mod resume;
mod step;
mod stop;
mod summary;
mod trainer;
mod writer;

pub use builder::TrainerBuilder;
pub use error::{NoRun, Remedy, TrainError};
pub use evaluation::Evaluation;
pub use feed::{Batch, Feed, IntoFeed};
pub use folder::RunFolder;
pub use hook::{Hook, LogLines};
pub use metrics::peak::peak_flops;
pub use outcome::{Ended, Outcome};
pub use report::{Comparison, ReportFormat};
pub use resume::{Resume, ResumeOptions};
pub use stop::Stop;
pub use summary::{DeviceMemory, Summary};
pub use trainer::Trainer;

pub use held_out::{right as told_right, told as told_targets};
pub use resume::lacks;

/// The run's configuration, in the caller's format.
pub const CONFIG_FILE: &str = "config.toml";
/// Returns the folder of checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// A link to the checkpoint of the lowest held-out loss, if there were evaluations during training.
pub const BEST: &str = "best";
/// Timeline of the last step, in Chrome's trace format.
pub const TRACE_FILE: &str = "trace.json";
