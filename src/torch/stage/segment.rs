//! Runs of layers that are kept or recomputed as one.
//!
//! Each segment of a stage has a graph of its own: where one ends and the next
//! begins, gradients are handed on as they are from stage to stage. A segment that
//! recomputes keeps its inputs instead, until its backward (or an `R` before it)
//! runs its layers again.

use std::ops::Range;

use super::activations::{Inputs, Transit};
use super::buffers::Before;
use crate::torch::recompute::Recompute;
use crate::torch::skips::Skip;
use crate::torch::values::Values;

/// One of a stage's segments, or all of its layers as one, as inference has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Segment(usize),
    Whole,
}

/// What the layers of a segment change in place though others may need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Writes {
    /// What the segment is given.
    pub(super) inputs: bool,
    /// What its layers have stashed.
    pub(super) stashes: bool,
    /// Parameters and buffers that its layers have given out.
    pub(super) own: bool,
}

impl Writes {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            inputs: self.inputs || other.inputs,
            stashes: self.stashes || other.stashes,
            own: self.own || other.own,
        }
    }
}

/// Consecutive layers of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Numbers within the stage.
    pub(super) layers: Range<usize>,
    pub(super) recompute: bool,
    /// Skips that end here and began before, by their numbers.
    pub(super) incoming: Vec<usize>,
    /// Skips that begin here and end later.
    pub(super) outgoing: Vec<usize>,
    /// Unknown before the first run.
    pub(super) writes: Option<Writes>,
    /// The layers that give out parameters or buffers; unknown before the first run.
    pub(super) owners: Option<Vec<usize>>,
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

    /// All layers of a stage as one.
    pub(super) fn whole(stage: &Range<usize>, skips: &[Skip]) -> Self {
        Self::new(stage, stage, false, skips)
    }

    /// What the segment needs, out of what is on its way.
    pub(super) fn take_inputs(&self, main: Values, transit: &mut Transit) -> Inputs {
        let skips = self.incoming.iter();
        Inputs {
            main,
            skips: skips
                .map(|skip| (*skip, transit.remove(skip).flatten()))
                .collect(),
            before: Before::new(),
        }
    }
}

/// The segments of the stage that has these layers of the model.
pub(super) fn segments(
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
