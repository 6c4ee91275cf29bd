//! Layers as rows: one each, or groups of several in a long model.

use super::ProfilePage;
use crate::ids::StageId;
use crate::profile::{LayerCost, LayerProfile};
use crate::units::{Bytes, Micros};

/// Most rows of a page; longer models have several layers per row.
const MAX_ROWS: usize = 1000;

/// Consecutive layers that a row, a column or a stage stands for.
pub(super) struct Row {
    /// Index of its first layer.
    pub(super) first: usize,
    pub(super) layers: usize,
    pub(super) forward: Micros,
    pub(super) input: Micros,
    pub(super) weight: Micros,
    pub(super) parameters: Bytes,
    pub(super) kept: Bytes,
    /// Largest spread of its layers, if known.
    pub(super) spread: Option<f64>,
}

impl Row {
    fn new(first: usize, costs: &[LayerCost], layers: &[LayerProfile]) -> Self {
        let time = |of: fn(&LayerCost) -> Micros| costs.iter().map(of).sum();
        let bytes = |of: fn(&LayerCost) -> Bytes| costs.iter().map(of).sum();
        Self {
            first,
            layers: costs.len(),
            forward: time(|cost| cost.forward),
            input: time(|cost| cost.input),
            weight: time(|cost| cost.weight),
            parameters: bytes(|cost| cost.parameters),
            kept: bytes(|cost| cost.activations),
            spread: layers.iter().filter_map(spread).reduce(f64::max),
        }
    }

    /// Time of forward and both halves of the backward.
    pub(super) fn time(&self) -> Micros {
        self.forward + self.input + self.weight
    }

    /// Bytes of parameters and activations.
    pub(super) fn bytes(&self) -> Bytes {
        self.parameters + self.kept
    }
}

/// Fewest measurements with a meaningful spread.
const FEWEST: usize = 3;

/// Returns the larger relative spread of a layer's measurements.
fn spread(layer: &LayerProfile) -> Option<f64> {
    let spread = layer.spread.filter(|own| own.repeats() >= FEWEST)?;
    Some(spread.forward().max(spread.backward()))
}

/// Returns the rows of each stage.
pub(super) fn rows(page: &ProfilePage<'_>) -> Vec<Vec<Row>> {
    let together = page.costs.len().div_ceil(MAX_ROWS);
    let partition = &page.plan.partition;
    let of_stage = |stage: usize| {
        let range = partition.range(StageId(stage));
        let starts = range.clone().step_by(together);
        let row = |start: usize| {
            let layers = start..(start + together).min(range.end);
            let measured = &page.profile.layers()[layers.clone()];
            Row::new(start, &page.costs[layers], measured)
        };
        starts.map(row).collect()
    };
    (0..partition.stages()).map(of_stage).collect()
}
