//! Specification of a stage, from which its parts are made.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::accumulator::Accumulator;
use super::buffers::Buffers;
use super::compute::Compute;
use super::exchange::{Copies, Exchange};
use super::graph_audit::Graphing;
use super::graphs::Graphs;
use super::layers::Layers;
use super::loss::StageLoss;
use super::meter::{DeviceMeter, StageMeter};
use super::offload::Offload;
use super::own_tensors::OwnTensors;
use super::passes::Passes;
use super::segment::Segments;
use super::skip_routes::SkipRoutes;
use crate::precision::Precision;
use crate::recompute::Recompute;
use crate::sequential::{BuiltLayer, LayerBuilder};
use crate::skips::Skip;
use crate::streams::{DeviceStreams, Route};

/// Specification of a stage.
#[derive(Debug, Clone)]
pub(crate) struct StageSpec {
    /// Number of the stage, from 0.
    pub(crate) number: usize,
    pub(crate) last: bool,
    pub(crate) device: Device,
    pub(crate) seed: u64,
    /// Its layers, and their range in the model.
    pub(crate) layers: Vec<LayerBuilder>,
    pub(crate) range: Range<usize>,
    /// All skips of the model.
    pub(crate) skips: Arc<[Skip]>,
    pub(crate) recompute: Recompute,
    pub(crate) precision: Precision,
    /// Meter of its activations, if requested.
    pub(crate) meter: Option<DeviceMeter>,
    /// Destinations of its outputs.
    pub(crate) route: Route,
    /// Whether its passes are captured and replayed.
    pub(crate) graphing: Graphing,
    /// Number of leaves in the sums of its gradients, a power of two.
    pub(crate) tree: usize,
    /// Copies of the stage in the pipeline's replicas, itself included.
    pub(crate) copies: Copies,
}

impl StageSpec {
    /// Builds the layers on the stage's device, on the thread that will run them, and all
    /// parts that passes are made of.
    pub(super) fn passes(
        &self,
        streams: &Rc<DeviceStreams>,
        meter: Option<&StageMeter>,
    ) -> anyhow::Result<Passes> {
        let counted = meter.and_then(StageMeter::enter);
        let layers = self.layers.iter();
        let layers: Vec<_> = layers
            .map(|layer| layer.build(self.device, self.seed))
            .collect::<Result<_, _>>()?;
        drop(counted);
        let parameters: Vec<_> = layers.iter().flat_map(BuiltLayer::parameters).collect();
        let buffers: Vec<_> = layers.iter().map(BuiltLayer::buffers).collect();
        let own = parameters.iter().chain(buffers.iter().flatten());
        let own: Vec<Tensor> = own.map(|(_, tensor)| tensor.shallow_clone()).collect();
        let audit = self.graphing.audit();
        let layers = Layers::new(
            layers,
            (self.device, self.precision),
            OwnTensors::new(own),
            SkipRoutes::new(&self.range, &self.skips),
            audit.clone(),
        );
        let segments = Segments::new(&self.range, self.number, &self.recompute, &self.skips);
        let compute = Compute::new(self.number == 0, layers, Buffers::new(buffers), segments);
        let share = self.tree / self.copies.count();
        let first = self.copies.replica * share;
        let leaves = (self.tree, first..first + share);
        let accumulator = Accumulator::new(self.device, Rc::clone(streams), parameters, leaves);
        let loss = self.last.then(|| StageLoss::new(self.seed));
        let offload = self.route.offload.map(|least| {
            let meter = meter.map(StageMeter::offloading);
            Offload::new(self.device, Rc::clone(streams), meter, least)
        });
        let graphs = audit.map(|audit| Graphs::new(Rc::clone(streams), audit, &compute, self.last));
        let exchange = Exchange::new(&self.copies);
        Ok(Passes::new(
            compute,
            accumulator,
            loss,
            offload,
            graphs,
            exchange,
        ))
    }
}
