//! Whether a stage is to use CUDA graphs, and what became of them.

use std::rc::Rc;

use crate::torch::stage::graph_audit::GraphAudit;

/// Whether a stage is to capture graphs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Graphing {
    #[default]
    Off,
    On,
    /// It would be, but cannot; why.
    Refused(String),
}

/// What became of CUDA graphs on a stage; see
/// [`PipelineBuilder::cuda_graphs`](crate::PipelineBuilder::cuda_graphs).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphUse {
    /// Graphs that were captured.
    pub captured: u64,
    /// Graphs that were replayed.
    pub replayed: u64,
    /// Why the stage computes without graphs (and will not try again); none while nothing
    /// stands against them.
    pub eager: Option<String>,
}

impl Graphing {
    /// What is known to stand against graphs, where they are asked for.
    pub(in crate::torch::stage) fn audit(&self) -> Option<Rc<GraphAudit>> {
        let refused = match self {
            Self::Off => return None,
            Self::On => None,
            Self::Refused(why) => Some(why.clone()),
        };
        Some(Rc::new(GraphAudit::new(refused)))
    }
}
