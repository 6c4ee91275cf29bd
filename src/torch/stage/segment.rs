//! Segments: sequences of layers that are kept or recomputed as one.
//!
//! Each segment of a stage has its own graph: between segments gradients are passed as between
//! stages. A segment that recomputes keeps its inputs instead, until its backward (or an `R` before
//! it) runs its layers again.

use std::ops::Range;

use gpipe_partitioner::MicroId;

use super::border::SkipValues;
use super::inputs::Inputs;
use super::writes::Writes;
use crate::recompute::Recompute;
use crate::skips::Skip;
use crate::values::Values;

/// Unit of a run: a segment of the stage, or all of its layers, in inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunUnit {
    Segment(usize),
    AllLayers,
}

/// A stage's segments.
#[doc(alias = "activation checkpointing")]
#[derive(Debug)]
pub(super) struct Segments {
    all: Vec<Segment>,
    /// All layers as one segment.
    whole: Segment,
    recompute: Recompute,
}

/// Consecutive layers of a stage, which are kept or recomputed as one.
#[doc(alias = "checkpoint")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Numbers within the stage.
    layers: Range<usize>,
    recompute: bool,
    /// Skips that end here and began before, by their numbers.
    incoming: Vec<usize>,
    /// Skips that begin here and end later.
    outgoing: Vec<usize>,
    /// Unknown before the first run.
    writes: Option<Writes>,
    /// The layers that give out parameters or buffers; unknown before the first run.
    owners: Option<Vec<usize>>,
}

impl Segments {
    /// Makes the segments of a stage with this number and these layers of the model.
    pub(super) fn new(
        layers: &Range<usize>,
        stage: usize,
        recompute: &Recompute,
        skips: &[Skip],
    ) -> Self {
        Self {
            all: segments(layers, stage, recompute, skips),
            whole: Segment::new(layers, layers, false, skips),
            recompute: recompute.clone(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, unit: RunUnit) -> &Segment {
        match unit {
            RunUnit::Segment(number) => &self.all[number],
            RunUnit::AllLayers => &self.whole,
        }
    }

    pub(super) fn get_mut(&mut self, unit: RunUnit) -> &mut Segment {
        match unit {
            RunUnit::Segment(number) => &mut self.all[number],
            RunUnit::AllLayers => &mut self.whole,
        }
    }

    /// Returns whether another segment of the stage follows.
    pub(super) fn has_next(&self, unit: RunUnit) -> bool {
        matches!(unit, RunUnit::Segment(number) if number + 1 < self.all.len())
    }

    /// Returns whether a segment drops the graph of its forward for this micro-batch.
    pub(super) fn recomputes(&self, number: usize, micro: MicroId, micro_batches: usize) -> bool {
        self.all[number].recompute && self.recompute.applies(micro, micro_batches)
    }

    /// Returns whether any layers have their own recompute rule.
    pub(super) fn any_recomputes(&self) -> bool {
        self.all.iter().any(|segment| segment.recompute)
    }

    /// Sets whether all layers recompute, from the next step on.
    pub(super) fn recompute_all(&mut self, redo: bool) {
        self.recompute = if redo {
            Recompute::Always
        } else {
            Recompute::Never
        };
        for segment in &mut self.all {
            segment.recompute = redo;
        }
    }

    /// Runs layers on copies of their inputs from now on.
    pub(super) fn copy_inputs(&mut self) {
        let all = self.all.iter_mut().filter_map(|one| one.writes.as_mut());
        all.for_each(|writes| *writes = writes.with_inputs(true));
    }
}

impl Segment {
    fn new(run: &Range<usize>, stage: &Range<usize>, recompute: bool, skips: &[Skip]) -> Self {
        Self {
            incoming: incoming(run, skips),
            outgoing: outgoing(run, skips),
            layers: run.start - stage.start..run.end - stage.start,
            recompute,
            writes: None,
            owners: None,
        }
    }

    /// The numbers of its layers within the stage.
    pub(super) fn layers(&self) -> &Range<usize> {
        &self.layers
    }

    /// Skips that begin here and end later.
    pub(super) fn outgoing(&self) -> &[usize] {
        &self.outgoing
    }

    /// Returns which tensors its layers write to; unknown before the first run.
    pub(super) fn writes(&self) -> Option<Writes> {
        self.writes
    }

    /// The layers that give out parameters or buffers; unknown before the first run.
    pub(super) fn owners(&self) -> Option<&[usize]> {
        self.owners.as_deref()
    }

    /// Sets which tensors its layers are known to write to.
    pub(super) fn set_writes(&mut self, writes: Writes) {
        self.writes = Some(writes);
    }

    /// Does the same after its first run.
    pub(super) fn learn(&mut self, writes: Writes, owners: Vec<usize>) {
        self.writes = Some(writes);
        self.owners = Some(owners);
    }

    /// Takes its inputs out of the values in transit.
    pub(super) fn take_inputs(&self, main: Values, skips: &mut SkipValues) -> Inputs {
        let own = self.incoming.iter().map(|skip| (*skip, skips.take(*skip)));
        Inputs::new(main, own.collect())
    }
}

/// The segments of the stage that has these layers of the model.
fn segments(
    layers: &Range<usize>,
    stage: usize,
    recompute: &Recompute,
    skips: &[Skip],
) -> Vec<Segment> {
    runs(layers, stage, recompute)
        .into_iter()
        .map(|(run, recompute)| Segment::new(&run, layers, recompute, skips))
        .collect()
}

/// Runs of the model's layers with what becomes of them: all that are kept side by
/// side make one run, each one that is recomputed by itself another.
fn runs(layers: &Range<usize>, stage: usize, recompute: &Recompute) -> Vec<(Range<usize>, bool)> {
    let whole = |recompute| vec![(layers.clone(), recompute)];
    match recompute {
        Recompute::Never => whole(false),
        Recompute::ExceptLast | Recompute::Always => whole(true),
        Recompute::Stages(stages) => whole(stages.get(stage).copied().unwrap_or(false)),
        Recompute::Layers(flags) => {
            let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
            for layer in layers.clone() {
                let redo = flags.get(layer).copied().unwrap_or(false);
                match runs.last_mut() {
                    Some((run, false)) if !redo => run.end = layer + 1,
                    _ => runs.push((layer..layer + 1, redo)),
                }
            }
            runs
        }
    }
}

/// Skips into a run of the model's layers from before it, in increasing order.
pub(super) fn incoming(run: &Range<usize>, skips: &[Skip]) -> Vec<usize> {
    numbers(skips, |skip| {
        run.contains(&skip.to) && skip.from < run.start
    })
}

/// Skips out of a run of the model's layers to after it, in increasing order.
pub(super) fn outgoing(run: &Range<usize>, skips: &[Skip]) -> Vec<usize> {
    numbers(skips, |skip| run.contains(&skip.from) && skip.to >= run.end)
}

fn numbers(skips: &[Skip], wanted: impl Fn(&Skip) -> bool) -> Vec<usize> {
    let wanted = skips.iter().enumerate().filter(|(_, skip)| wanted(skip));
    wanted.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(recompute: &Recompute) -> Vec<(Range<usize>, bool)> {
        segments(&(2..6), 1, recompute, &[])
            .into_iter()
            .map(|segment| (segment.layers, segment.recompute))
            .collect()
    }

    #[test]
    fn a_stage_is_one_segment_unless_layers_differ() {
        assert_eq!(ranges(&Recompute::Never), [(0..4, false)]);
        assert_eq!(ranges(&Recompute::Always), [(0..4, true)]);
        assert_eq!(
            ranges(&Recompute::Stages(vec![true, false])),
            [(0..4, false)]
        );
        let flags = [true, true, false, false, true, true].to_vec();
        assert_eq!(
            ranges(&Recompute::Layers(flags)),
            [(0..2, false), (2..3, true), (3..4, true)]
        );
    }

    #[test]
    fn skips_belong_to_the_segments_that_they_leave_and_reach() {
        let skip = |from, to| Skip {
            name: format!("{from}-{to}"),
            from,
            to,
        };
        let skips = [skip(0, 5), skip(2, 5), skip(2, 3), skip(4, 9)];
        let found = segments(&(2..6), 0, &Recompute::Layers(vec![true; 6]), &skips);
        let ways: Vec<_> = found
            .iter()
            .map(|segment| (segment.incoming.clone(), segment.outgoing.clone()))
            .collect();
        assert_eq!(
            ways,
            [
                (vec![], vec![1, 2]),
                (vec![2], vec![]),
                (vec![], vec![3]),
                (vec![0, 1], vec![])
            ]
        );
    }
}
