//! Gradients that are summed over micro-batches in a tree: as its definition says, whatever
//! the cut and the schedule.

mod oracle;
mod pipelines;
mod steps;
