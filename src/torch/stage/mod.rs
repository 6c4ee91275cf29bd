//! A stage: consecutive layers on one device, driven by the engine's actions.
//!
//! The life of one micro-batch here: `F` turns what was received into the
//! beginning of a graph, runs the layers, and sends the outputs on, detached;
//! the graph waits as the micro-batch's *flight*. `B` is given the gradients of
//! those outputs, runs autograd once, accumulates into the parameters and sends
//! back the gradients that arrived at the inputs; `I` and `W` do the same in two
//! steps. Layers that recompute leave only their inputs in the flight, and `R` (or
//! the backward itself) makes the graph. The last stage's outputs are the loss,
//! which brings its own gradient: the micro-batch's share of the mini-batch.
//!
//! A stage is made of parts, none of which looks into another:
//!
//! | part | is |
//! |---|---|
//! | [`Passes`](passes::Passes) | what `F`, `B`, `I`, `W` and `R` do with the others |
//! | [`Compute`](compute::Compute) | runs segments of layers, also once more; finds out what they write to |
//! | [`Layers`](layers::Layers) | runs layers one behind the other: random numbers, precision, skips |
//! | [`Accumulator`](accumulator::Accumulator) | the gradients within a step and between steps |
//! | [`Leaves`](leaves::Leaves) | the order of a step's sums, where it is a tree, for the accumulator |
//! | [`Exchange`](exchange::Exchange) | the sums of all replicas of the pipeline, where there are several |
//! | [`Activations`](activations::Activations) | what micro-batches in flight keep: graphs, inputs, what is offloaded |
//! | [`StageLoss`](loss::StageLoss) | the loss, on the last stage |
//! | [`Offload`](offload::Offload) | activations in the host's memory, where asked for |
//! | [`Graphs`](graphs::Graphs) | CUDA graphs, where asked for |
//! | [`StageMeter`](meter::StageMeter) | counts memory, where asked for |
//! | [`Optimizers`](optimizers::Optimizers) | the optimizers' states |

mod accumulator;
mod activations;
mod between_steps;
mod border;
mod buffers;
mod compute;
mod exchange;
mod gathered;
mod graph_audit;
mod graphs;
mod in_a_row;
mod inputs;
mod layers;
mod leaves;
mod live;
mod loss;
mod lost_device;
mod meter;
mod non_finite;
mod offload;
mod optimizers;
mod outer;
mod own_tensors;
mod owned;
mod owners;
mod pass;
mod passes;
mod portable;
mod progress;
mod segment;
mod skip_routes;
mod spec;
mod torch_stage;
mod writes;

pub(crate) use exchange::{Copies, Sums};
pub use graphs::GraphUse;
pub(crate) use graphs::Graphing;
pub(crate) use in_a_row::{Row, RowStep, Votes};
pub(crate) use meter::{DeviceMeter, MemoryLevels, StepMemory};
pub(crate) use outer::OuterStep;
pub(crate) use portable::{Portable, Role};
pub(crate) use spec::StageSpec;
pub(crate) use torch_stage::TorchStage;
