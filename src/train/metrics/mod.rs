//! Metrics of training steps: as JSON lines, as TensorBoard event files, and as lines on a terminal.
//!
//! ```
//! use gpipe::train::metrics::{RunMetrics, StepMetrics, read};
//!
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path();
//! let mut metrics = RunMetrics::create(folder)?; // metrics.jsonl and events.out.tfevents.*
//! for step in 1..=3 {
//!     let loss = 1.0 / step as f64;
//!     metrics.step(&StepMetrics { step, loss, ..StepMetrics::default() })?;
//! }
//! drop(metrics);
//!
//! // Going on from a checkpoint of step 2: what came after it is cut off.
//! let mut metrics = RunMetrics::resume(folder, 2)?;
//! metrics.step(&StepMetrics { step: 3, loss: 0.25, ..StepMetrics::default() })?;
//! let losses: Vec<f64> = read(&folder.join("metrics.jsonl"))?.iter().map(|step| step.loss).collect();
//! assert_eq!(losses, [1.0, 0.5, 0.25]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod events;
mod interval;
mod json_lines;
pub(crate) mod peak;
mod report;
mod run;
mod step;

pub use error::MetricsError;
pub use events::EventFile;
pub(crate) use events::is_event_file;
pub use interval::Interval;
pub use json_lines::{JsonLines, read};
pub use peak::{Arithmetic, gpu_peak_flops, machine_peak_flops};
pub use run::{METRICS_FILE, RunMetrics};
pub(crate) use step::number_or_null;
pub use step::{StepMetrics, is_host_bound, speed};
