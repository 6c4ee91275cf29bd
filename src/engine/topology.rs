//! Edges along which values travel between the stages and the caller.

use gpipe_partitioner::{MicroId, StageId};
use std::fmt;

/// One end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The thread that calls [`Engine::step`](super::Engine::step).
    Caller,
    /// A stage.
    Stage(StageId),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller => f.write_str("the caller"),
            Self::Stage(stage) => write!(f, "stage {stage}"),
        }
    }
}

/// The path of a value from its producer to its consumer, used once per micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "p2p")]
pub struct Edge {
    /// The producer.
    pub from: End,
    /// The consumer.
    pub to: End,
    /// Whether a gradient travels back along the edge.
    pub gradient: bool,
}

/// Index of an edge in its [`Topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeId(pub usize);

impl EdgeId {
    /// The bare number, counted from 0.
    pub const fn index(self) -> usize {
        self.0
    }
}

impl fmt::Display for EdgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The edges between the stages of a model and its caller.
///
/// An edge may skip stages (a portal), and there may be several between the same
/// two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    stages: usize,
    edges: Vec<Edge>,
}

impl Topology {
    /// Creates a topology of `stages` stages; an edge's id is its index in `edges`.
    ///
    /// # Errors
    /// [`TopologyError`] for an edge that no schedule can serve.
    pub fn new(stages: usize, edges: Vec<Edge>) -> Result<Self, TopologyError> {
        for (index, edge) in edges.iter().enumerate() {
            check_edge(stages, EdgeId(index), edge)?;
        }
        Ok(Self { stages, edges })
    }

    /// Creates a chain, in which every stage hands one value to the next: edge 0 leads from the
    /// caller to stage 0, edge s from stage s − 1 to stage s, edge `stages` from the last stage to
    /// the caller. All but the last carry a gradient back.
    pub fn chain(stages: usize) -> Self {
        let end = |stage: Option<usize>| match stage {
            Some(stage) if stage < stages => End::Stage(StageId(stage)),
            _ => End::Caller,
        };
        let edge = |to: usize| Edge {
            from: end(to.checked_sub(1)),
            to: end(Some(to)),
            gradient: to < stages,
        };
        let edges = if stages == 0 {
            Vec::new()
        } else {
            (0..=stages).map(edge).collect()
        };
        Self { stages, edges }
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The edges, in the order of their ids.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The edges into `end`, in the order of their ids.
    pub fn incoming(&self, end: End) -> impl Iterator<Item = (EdgeId, Edge)> + '_ {
        self.enumerate().filter(move |(_, edge)| edge.to == end)
    }

    /// The edges out of `end`, in the order of their ids.
    pub fn outgoing(&self, end: End) -> impl Iterator<Item = (EdgeId, Edge)> + '_ {
        self.enumerate().filter(move |(_, edge)| edge.from == end)
    }

    fn enumerate(&self) -> impl Iterator<Item = (EdgeId, Edge)> + '_ {
        self.edges
            .iter()
            .enumerate()
            .map(|(index, edge)| (EdgeId(index), *edge))
    }
}

fn check_edge(stages: usize, id: EdgeId, edge: &Edge) -> Result<(), TopologyError> {
    for end in [edge.from, edge.to] {
        if let End::Stage(stage) = end
            && stage.index() >= stages
        {
            return Err(TopologyError::NoStage {
                edge: id,
                stage,
                stages,
            });
        }
    }
    match (edge.from, edge.to) {
        (End::Caller, End::Caller) => Err(TopologyError::CallerToCaller { edge: id }),
        (End::Stage(from), End::Stage(to)) if from >= to => {
            Err(TopologyError::Backwards { edge: id, from, to })
        }
        (End::Stage(_), End::Caller) if edge.gradient => {
            Err(TopologyError::GradientFromCaller { edge: id })
        }
        _ => Ok(()),
    }
}

/// Why edges make no topology or do not fit a schedule, or why schedules make no replicas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// An edge names a stage that does not exist.
    #[error("edge {edge} names stage {stage}, but there are {stages} stages")]
    NoStage {
        /// The edge.
        edge: EdgeId,
        /// The stage that it names.
        stage: StageId,
        /// Number of stages.
        stages: usize,
    },
    /// An edge from the caller to the caller: no stage would ever see the value.
    #[error("edge {edge} leads from the caller to the caller")]
    CallerToCaller {
        /// The edge.
        edge: EdgeId,
    },
    /// Values flow from lower to higher stages only.
    #[error("edge {edge} leads from stage {from} to stage {to}: values flow to later stages only")]
    Backwards {
        /// The edge.
        edge: EdgeId,
        /// The stage where it starts.
        from: StageId,
        /// The stage where it ends.
        to: StageId,
    },
    /// The caller makes no gradients: the last stage computes the loss.
    #[error("edge {edge} leads to the caller, which sends no gradient back")]
    GradientFromCaller {
        /// The edge.
        edge: EdgeId,
    },
    /// The schedule is for another number of stages.
    #[error("schedule `{schedule}` has {scheduled} stages, the topology has {stages}")]
    Stages {
        /// The schedule's name.
        schedule: String,
        /// Stages of the schedule.
        scheduled: usize,
        /// Stages of the topology.
        stages: usize,
    },
    /// None of the replicas has micro-batches.
    #[error("a step needs a replica with micro-batches: none of {replicas} has any")]
    NoMicroBatches {
        /// Number of replicas given.
        replicas: usize,
    },
    /// The replicas have their stages on different devices, or some train and some do not.
    #[error(
        "schedule `{schedule}` of replica {replica} differs from `{first}` of the first one: \
         replicas have the same stages on the same devices, and all train or none does"
    )]
    Replicas {
        /// The replica that differs.
        replica: usize,
        /// Its schedule's name.
        schedule: String,
        /// The name of the schedule of the first replica that has micro-batches.
        first: String,
    },
    /// No copy of a stage takes a value that another copy gives it in an exchange.
    #[error(
        "schedule `{schedule}`: nothing takes what round {round} of the exchange of stage {stage} gives"
    )]
    NeverExchanged {
        /// The schedule's name.
        schedule: String,
        /// The stage.
        stage: StageId,
        /// The round that gives the value.
        round: usize,
    },
    /// The schedule never runs the action that would take a value.
    #[error("schedule `{schedule}` has no action that takes edge {edge}, micro-batch {micro}")]
    NeverTaken {
        /// The schedule's name.
        schedule: String,
        /// The edge.
        edge: EdgeId,
        /// The micro-batch.
        micro: MicroId,
    },
}
