//! CUDA graphs without a device: a recorder replaces it, and repeats the operations that a graph would hold.
//! Everything else is as on a device: slots, copies, sums of gradients, refusals and their reasons.

mod failures;
mod numbers;
mod one_card;
mod reasons;
mod setup;
mod slots;
