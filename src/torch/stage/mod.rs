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
//! A stage is made of independent parts:
//!
//! | part | is |
//! |---|---|
//! | [`Passes`](passes::Passes) | run `F`, `B`, `I`, `W` and `R` with the other parts |
//! | [`Compute`](compute::Compute) | runs segments of layers, and recomputes them; finds out which tensors they write to |
//! | [`Layers`](layers::Layers) | runs layers in sequence: random numbers, precision, skips |
//! | [`Accumulator`](accumulator::Accumulator) | the gradients within a step and between steps |
//! | [`Leaves`](leaves::Leaves) | the order of a step's sums for the accumulator, if it is a tree |
//! | [`Exchange`](exchange::Exchange) | the sums over all replicas of the pipeline, if there are several |
//! | [`Activations`](activations::Activations) | state of micro-batches in flight: graphs, inputs, offloaded tensors |
//! | [`StageLoss`](loss::StageLoss) | the loss, on the last stage |
//! | [`Offload`](offload::Offload) | activations in host memory, if requested |
//! | [`Graphs`](graphs::Graphs) | CUDA graphs, if requested |
//! | [`StageMeter`](meter::StageMeter) | counts memory, if requested |
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
mod parameter_ownership;
mod pass;
mod passes;
mod portable;
mod progress;
mod rounds;
mod segment;
mod skip_routes;
mod spec;
mod torch_stage;
mod writes;

pub(crate) use exchange::{Copies, Sums};
pub use graph_audit::GraphUse;
pub(crate) use graph_audit::Graphing;
pub(crate) use meter::{DeviceMeter, MemoryLevels, StepMemory};
pub(crate) use outer::OuterStep;
pub use portable::Portable;
pub use portable::Role;
pub(crate) use spec::StageSpec;
pub(crate) use torch_stage::TorchStage;
