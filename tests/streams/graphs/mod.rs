//! CUDA graphs without a device: a recorder stands in for it, and does again what a graph
//! would hold. Everything else is as it is on a device: slots, copies, sums of gradients,
//! what is refused and why.

mod failures;
mod numbers;
mod one_card;
mod reasons;
mod setup;
mod slots;
