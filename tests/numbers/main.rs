//! A pipeline's numbers equal the plain model's, bit for bit, for any cut and schedule, whatever layers do
//! with their inputs.
#![allow(clippy::unwrap_used, clippy::float_cmp, clippy::cast_precision_loss)]

mod batch_norm;
mod gradients;
mod in_place;
mod joint_backward;
mod kernels;
mod local_steps;
mod optim;
mod precision;
mod products;
mod pytorch_schedules;
mod randomness;
mod replicas;
mod sharded;
mod skips;
mod split_backward;
#[path = "../support/mod.rs"]
mod support;
mod transparency;
mod tree;
mod values;
