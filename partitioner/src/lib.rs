//! All decisions about a pipeline that are made before a tensor exists.
//!
//! A [`Schedule`] lists the actions of each device, in order. [`Schedule::check`] turns it into a
//! [`CheckedSchedule`], the only form that can be simulated or run. [`simulate()`] predicts a
//! [`Timeline`] from [`Costs`]; the engine measures one of the same type.
//!
//! ```
//! use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, render, simulate};
//!
//! let shape = Shape { devices: 4, chunks: 1, micro_batches: 8 };
//! let schedule = ScheduleKind::OneFOneB.generate(shape)?;
//! let millisecond = Micros::new(1000.0)?;
//! let costs = Costs::uniform(4, millisecond, millisecond, millisecond);
//! let simulation = simulate(&schedule, &costs);
//! // Eight micro-batches of 3 ms, and a bubble of (p - 1)(Tf + Tb) = 9 ms.
//! assert_eq!(simulation.timeline.makespan().get(), 33_000.0);
//! println!("{}", render::text(&simulation.timeline, 80));
//! # Ok::<(), gpipe_partitioner::Error>(())
//! ```
#![forbid(unsafe_code)]
// The expected times of tests are exact in binary.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]

pub mod analytic;
pub mod auto;
pub mod builtin;
pub mod check;
mod cores;
pub mod cost;
mod device_names;
pub mod error;
pub mod explain;
pub mod failures;
pub mod files;
mod generate;
pub mod ids;
mod json;
pub mod machine;
mod model;
pub mod partition;
pub mod plan;
pub mod profile;
pub mod render;
pub mod schedule;
pub mod simulate;
pub mod solve;
pub mod sweep;
pub mod timeline;
pub mod tree;
pub mod units;
mod urgency;
mod value_error;
mod walk;
pub mod words;

pub use analytic::{TensorGroup, Transformer};
pub use auto::{Auto, AutoCandidate, AutoInARow, Effort, auto, auto_in_a_row, auto_within};
pub use builtin::{ScheduleError, ScheduleKind};
pub use check::{CheckError, CheckedSchedule, CsvFormat};
pub use cores::{Cores, CoresError};
pub use cost::{
    Cards, Costs, EdgeTimes, HostLink, Joins, Link, OffloadTimes, StageMemory, StageTimes,
};
pub use device_names::DeviceNames;
pub use error::Error;
pub use explain::{Explanation, explain};
pub use failures::{CheckpointInterval, Failures};
pub use ids::{DeviceId, LayerId, MicroId, StageId};
pub use json::ReadError;
pub use machine::cluster::{Card, Cluster, ClusterError, Layout, NodeKind};
pub use machine::{AllReduce, Device, Machine, MachineError, Neighbours, Nodes, NodesError, VOTES};
pub use model::ModelId;
pub use partition::{Partition, PartitionError};
pub use plan::cluster::{
    ClusterOptions, TooLarge, TransformerOptions, TransformerPlan, plan_cluster, plan_transformer,
    too_large, what_more,
};
pub use plan::{Alternative, More, Plan, PlanError, PlanOptions, plan, what_more_devices};
pub use profile::{Footprint, LayerCost, LayerProfile, LayerTimes, Profile, Spread};
pub use schedule::{Action, ActionKind, CsvError, OffloadMove, Placement, Schedule, Shape};
pub use simulate::{Jitter, JitteredSteps, Simulation, simulate};
pub use solve::{Problem, Solution, SolveError, Strategy, Transfer, When};
pub use sweep::{JitterOutcome, Risk, RiskColumns, Sweep, SweepOutcome, SweepPoint};
pub use timeline::{Exchange, Span, Timeline};
pub use units::{Bytes, Micros};
pub use urgency::urgencies;
pub use value_error::ValueError;
