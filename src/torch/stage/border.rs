//! Data that crosses borders between segments or stages: values, skip values, gradients.

use std::collections::HashMap;

use tch::Tensor;

use crate::values::Values;

/// Values of skips (or their gradients) by the skips' numbers, in an order.
pub(super) type SkipList = Vec<(usize, Option<Tensor>)>;

/// Values of skips (or their gradients) on their way, by the skips' numbers.
#[derive(Debug, Default)]
pub(super) struct SkipValues(HashMap<usize, Option<Tensor>>);

impl SkipValues {
    pub(super) fn put(&mut self, skip: usize, value: Option<Tensor>) {
        self.0.insert(skip, value);
    }

    pub(super) fn put_all(&mut self, all: SkipList) {
        self.0.extend(all);
    }

    /// The value; absent also if it was never put here.
    pub(super) fn take(&mut self, skip: usize) -> Option<Tensor> {
        self.0.remove(&skip).flatten()
    }

    /// Takes one value per skip, each for an edge of its own.
    pub(super) fn take_edges(&mut self, skips: &[usize]) -> Vec<Values> {
        let values = skips.iter().map(|skip| self.take(*skip));
        values.map(|value| [value].into_iter().collect()).collect()
    }
}

/// Input of a stage's forward.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The main values.
    values: Values,
    /// Skips that end here.
    skips: SkipValues,
    /// Set on the last stage in training.
    targets: Values,
}

impl Arrived {
    /// Sorts the values of the edges: the main values, one per `incoming` skip, the targets.
    pub(super) fn new(edges: Vec<Values>, incoming: &[usize]) -> Self {
        let mut edges = edges.into_iter();
        let values = edges.next().unwrap_or_default();
        let mut skips = SkipValues::default();
        for &skip in incoming {
            let value = edges.next().unwrap_or_default();
            skips.put(skip, value.into_iter().next().flatten());
        }
        Self {
            values,
            skips,
            targets: edges.next().unwrap_or_default(),
        }
    }

    /// The main values, those of skips, the targets.
    pub(super) fn into_parts(self) -> (Values, SkipValues, Values) {
        (self.values, self.skips, self.targets)
    }
}

/// The gradients at a border: first those of the outputs there, and after a backward those
/// of the inputs.
#[derive(Debug)]
pub(super) struct BorderGradients {
    main: Vec<Option<Tensor>>,
    skips: SkipValues,
}

impl BorderGradients {
    /// Sorts the gradients received by a stage: those of its outputs, unless these are a loss,
    /// which has its own; then one per outgoing skip.
    pub(super) fn arrived(grads: Vec<Values>, has_loss: bool, outgoing: &[usize]) -> Self {
        let mut grads = grads.into_iter();
        let main = if has_loss {
            vec![None]
        } else {
            grads.next().unwrap_or_default().into_iter().collect()
        };
        let mut skips = SkipValues::default();
        for (&skip, grad) in outgoing.iter().zip(grads) {
            skips.put(skip, grad.into_iter().next().flatten());
        }
        Self { main, skips }
    }

    /// Takes gradients of outgoing skips, then of the outputs.
    pub(super) fn from_roots(outgoing: &[usize], roots: &[Option<Tensor>]) -> Self {
        let handle = |root: &Option<Tensor>| root.as_ref().map(Tensor::shallow_clone);
        let mut roots = roots.iter().map(handle);
        let skips = outgoing.iter().copied().zip(roots.by_ref()).collect();
        Self {
            skips: SkipValues(skips),
            main: roots.collect(),
        }
    }

    /// The gradients of an autograd graph's roots: those of the skips that leave it, then of
    /// its outputs.
    pub(super) fn roots(&self, outgoing: &[usize]) -> Vec<Option<&Tensor>> {
        let skips = outgoing.iter().map(|skip| self.skips.0.get(skip)?.as_ref());
        skips.chain(self.main.iter().map(Option::as_ref)).collect()
    }

    /// Moves them out, as they are no longer needed.
    pub(super) fn take_roots(&mut self, outgoing: &[usize]) -> Vec<Option<Tensor>> {
        let skips = outgoing.iter().map(|skip| self.skips.take(*skip));
        let mut roots: Vec<_> = skips.collect();
        roots.append(&mut self.main);
        roots
    }

    /// The backward is done: the gradients of its inputs, and of skips that reach it.
    pub(super) fn set_inputs(&mut self, main: Vec<Option<Tensor>>, skips: SkipList) {
        self.main = main;
        self.skips.put_all(skips);
    }

    /// Iterates over the gradients of the inputs.
    pub(super) fn present(&self) -> impl Iterator<Item = &Tensor> {
        self.main.iter().flatten()
    }

    /// The main gradients, and those of skips.
    pub(super) fn into_parts(self) -> (Vec<Option<Tensor>>, SkipValues) {
        (self.main, self.skips)
    }

    /// Returns one value for each edge into the stage along which gradients travel.
    pub(super) fn into_edges(mut self, main: bool, incoming: &[usize]) -> Vec<Values> {
        let mut sent = Vec::new();
        if main {
            sent.push(self.main.into_iter().collect());
        }
        sent.extend(self.skips.take_edges(incoming));
        sent
    }
}
