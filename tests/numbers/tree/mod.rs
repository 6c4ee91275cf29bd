//! Gradients summed over micro-batches in a tree follow its definition for any cut and schedule.

mod oracle;
mod pipelines;
mod steps;
