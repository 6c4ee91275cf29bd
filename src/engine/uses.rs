//! Values that each task consumes and produces, and the devices at their other ends.

use super::mesh::Mesh;
use super::replicas::Replicas;
use super::task::Task;
use super::topology::{Edge, EdgeId, End, Topology};
use gpipe_partitioner::{Action, ActionKind, DeviceId, MicroId, StageId};

/// A value of a step.
#[derive(Clone, Copy)]
pub(super) enum Use {
    Edge(EdgeUse),
    Exchange(ExchangeUse),
}

/// One use of an edge: forward or as a gradient, by one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EdgeUse {
    pub(super) edge: EdgeId,
    pub(super) gradient: bool,
    pub(super) micro: MicroId,
}

/// Value that one copy of a stage gives another for a round of their exchange.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ExchangeUse {
    pub(super) stage: StageId,
    /// The round that takes the value.
    pub(super) round: usize,
    /// The replicas.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The values of a program.
pub(super) struct Uses<'a> {
    replicas: &'a Replicas,
    mesh: Mesh,
    /// By stage: the edges into it and out of it.
    edges: Vec<StageEdges>,
}

struct StageEdges {
    incoming: Vec<(EdgeId, Edge)>,
    outgoing: Vec<(EdgeId, Edge)>,
}

impl<'a> Uses<'a> {
    pub(super) fn new(replicas: &'a Replicas, topology: &Topology) -> Self {
        let of_stage = |stage| StageEdges {
            incoming: topology.incoming(End::Stage(StageId(stage))).collect(),
            outgoing: topology.outgoing(End::Stage(StageId(stage))).collect(),
        };
        Self {
            replicas,
            mesh: replicas.shares.mesh,
            edges: (0..topology.stages()).map(of_stage).collect(),
        }
    }

    /// The device of an edge's end in a replica; none for the caller.
    pub(super) fn device(&self, end: End, replica: usize) -> Option<DeviceId> {
        match end {
            End::Caller => None,
            End::Stage(stage) => {
                let device = self.replicas.first().device_of(stage);
                Some(self.mesh.device(device, replica))
            }
        }
    }

    /// Number of values that the actions of `device` consume.
    pub(super) fn consumed_by_actions(&self, device: DeviceId) -> usize {
        let first = self.replicas.first();
        let stages = first.stages_on(self.mesh.of_pipeline(device)).into_iter();
        let per_micro = stages.map(|stage| {
            let edges = &self.edges[stage.index()];
            let back = edges.outgoing.iter().filter(|(_, edge)| edge.gradient);
            edges.incoming.len() + if first.is_training() { back.count() } else { 0 }
        });
        let replica = self.mesh.replica_of(device);
        let micros = self.replicas.shares.micro_batches_of(replica).len();
        micros * per_micro.sum::<usize>()
    }

    /// Values that a task of `device` consumes, each with its producer unless that is the caller.
    pub(super) fn inputs(&self, device: DeviceId, task: Task) -> Vec<(Use, Option<DeviceId>)> {
        match task {
            Task::Action(action) => {
                let edges = &self.edges[action.stage.index()];
                match action.kind {
                    ActionKind::Forward => {
                        self.of_edges(device, &edges.incoming, action, |edge| edge.from)
                    }
                    ActionKind::Backward | ActionKind::BackwardInput => {
                        self.of_edges(device, &edges.outgoing, action, |edge| edge.to)
                    }
                    ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
                }
            }
            Task::Exchange { round: 0, .. } => Vec::new(),
            Task::Exchange { stage, round } => self.of_others(device, |own, other| ExchangeUse {
                stage,
                round,
                from: other,
                to: own,
            }),
        }
    }

    /// Values that a task of `device` produces, each with its consumer unless that is the caller.
    pub(super) fn outputs(&self, device: DeviceId, task: Task) -> Vec<(Use, Option<DeviceId>)> {
        match task {
            Task::Action(action) => {
                let edges = &self.edges[action.stage.index()];
                match action.kind {
                    ActionKind::Forward => {
                        self.of_edges(device, &edges.outgoing, action, |edge| edge.to)
                    }
                    ActionKind::Backward | ActionKind::BackwardInput => {
                        self.of_edges(device, &edges.incoming, action, |edge| edge.from)
                    }
                    ActionKind::BackwardWeight | ActionKind::Recompute => Vec::new(),
                }
            }
            Task::Exchange { round, .. } if !self.replicas.sends(round) => Vec::new(),
            Task::Exchange { stage, round } => self.of_others(device, |own, other| ExchangeUse {
                stage,
                round: round + 1,
                from: own,
                to: other,
            }),
        }
    }

    /// Uses of `edges` by an action of `device`, with the device at the end that `other` selects: a
    /// forward uses all edges, a backward those that carry a gradient.
    fn of_edges(
        &self,
        device: DeviceId,
        edges: &[(EdgeId, Edge)],
        action: Action,
        other: impl Fn(&Edge) -> End,
    ) -> Vec<(Use, Option<DeviceId>)> {
        let gradient = action.kind != ActionKind::Forward;
        let edges = edges.iter().filter(|(_, edge)| edge.gradient || !gradient);
        let uses = edges.map(|(edge, ends)| {
            let (edge, micro) = (*edge, action.micro);
            let edge_use = EdgeUse {
                edge,
                gradient,
                micro,
            };
            let device = self.device(other(ends), self.mesh.replica_of(device));
            (Use::Edge(edge_use), device)
        });
        uses.collect()
    }

    /// One value of an exchange for each replica other than that of `device`, in their order, with
    /// the device there.
    fn of_others(
        &self,
        device: DeviceId,
        exchange_use: impl Fn(usize, usize) -> ExchangeUse,
    ) -> Vec<(Use, Option<DeviceId>)> {
        let (own, place) = (self.mesh.replica_of(device), self.mesh.of_pipeline(device));
        let others = (0..self.mesh.replicas()).filter(|other| *other != own);
        let one = |other| {
            let device = self.mesh.device(place, other);
            (Use::Exchange(exchange_use(own, other)), Some(device))
        };
        others.map(one).collect()
    }
}
