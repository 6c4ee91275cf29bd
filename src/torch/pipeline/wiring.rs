//! Values that travel between the stages of a model.

use gpipe_partitioner::{LayerId, Partition, StageId};

use crate::Skip;
use gpipe_engine::{Edge, End, Topology, TopologyError};

/// Purpose of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// Forwards and backwards; the gradient of the input may be wanted.
    Train { input_gradient: bool },
    /// Forwards only.
    Infer,
}

/// The stages of a model and the skips between them.
#[derive(Debug, Clone)]
pub(super) struct Wiring {
    stages: usize,
    /// Pairs of stages joined by a portal: one for each skip from one stage to another, in the
    /// skips' order.
    portals: Vec<(usize, usize)>,
}

impl Wiring {
    pub(super) fn new(partition: &Partition, skips: &[Skip]) -> Self {
        let stage_of = |layer: usize| partition.stage_of(LayerId(layer)).index();
        let ways = skips
            .iter()
            .map(|skip| (stage_of(skip.from), stage_of(skip.to)));
        Self {
            stages: partition.stages(),
            portals: ways.filter(|(from, to)| from != to).collect(),
        }
    }

    /// Returns the edges: the input enters the first stage, the target the last; each stage sends
    /// its outputs to the next, and skips directly to their destination; the loss (or the output)
    /// leaves the last. Stages rely on this order.
    pub(super) fn topology(&self, purpose: Purpose) -> Result<Topology, TopologyError> {
        let stage = |number: usize| End::Stage(StageId(number));
        let train = purpose != Purpose::Infer;
        let input_gradient = true;
        let mut edges = vec![Edge {
            from: End::Caller,
            to: stage(0),
            gradient: purpose == Purpose::Train { input_gradient },
        }];
        let between = |from, to| Edge {
            from: stage(from),
            to: stage(to),
            gradient: train,
        };
        edges.extend((1..self.stages).map(|to| between(to - 1, to)));
        edges.extend(self.portals.iter().map(|&(from, to)| between(from, to)));
        let last = stage(self.stages.saturating_sub(1));
        if train {
            edges.push(Edge {
                from: End::Caller,
                to: last,
                gradient: false,
            });
        }
        edges.push(Edge {
            from: last,
            to: End::Caller,
            gradient: false,
        });
        Topology::new(self.stages, edges)
    }
}
