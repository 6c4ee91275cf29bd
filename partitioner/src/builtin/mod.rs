//! The built-in schedules: a file for each generator, a row for each in `table.rs`.
//!
//! A generator is a pure function of a [`Shape`]: p devices, v chunks (stages) per device, m
//! micro-batches. Each is in its own file, which names its source and shows a small case; every
//! built-in keeps, per stage, its backwards (and its weight passes) in increasing micro-batch
//! order.
//!
//! **To add one**: add a file with `lists` (and its `mod` line below), and a row in `table.rs`.

mod building_block;
pub mod dualpipe_v;
mod error;
pub mod forward_only;
mod from_table;
pub mod gpipe;
pub mod interleaved_1f1b;
pub mod interleaved_zb;
mod lists;
mod looped;
pub mod looped_bfs;
mod name;
pub mod one_f_one_b;
#[cfg(test)]
mod pictures;
mod table;
pub mod v_half;
pub mod v_min;
mod vee;
pub mod zb_h1;
pub mod zb_h2;
pub mod zbv;

pub use error::ScheduleError;
pub use table::ScheduleKind;

use crate::schedule::{Action, ActionKind, Placement, Shape};
