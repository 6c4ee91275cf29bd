//! Requests for CUDA graphs on a stage, and statistics of their use.

use std::rc::Rc;

use crate::stage::graph_audit::GraphAudit;

/// Whether a stage captures graphs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Graphing {
    #[default]
    Off,
    On,
    /// Requested but impossible, for this reason.
    Refused(String),
}

/// Use of CUDA graphs on a stage; see
/// [`PipelineBuilder::cuda_graphs`](crate::PipelineBuilder::cuda_graphs).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphUse {
    /// Graphs that were captured.
    pub captured: u64,
    /// Graphs that were replayed.
    pub replayed: u64,
    /// Reason why the stage computes without graphs (and will not try again); `None` if there is no
    /// obstacle.
    pub eager: Option<String>,
}

impl Graphing {
    /// Returns the audit of obstacles, if graphs are requested.
    pub(in crate::stage) fn audit(&self) -> Option<Rc<GraphAudit>> {
        let refused = match self {
            Self::Off => return None,
            Self::On => None,
            Self::Refused(why) => Some(why.clone()),
        };
        Some(Rc::new(GraphAudit::new(refused)))
    }
}
