//! Runs the layers of a segment, and finds out what they write to.
//!
//! A layer may change what it is given in place. Inside a stage that is as in the
//! uncut model; but what arrives at a segment may be in use elsewhere. The caller's
//! own tensors, and what a segment that recomputes is run with, are always copied
//! first. The rest may be needed by the sender's backward or by another stage that
//! pops it. Whether a segment writes to its inputs is found out when it runs for the
//! first time, on copies; if so, it is given copies from then on. The others, nearly
//! all, copy nothing. If it writes to what it has stashed, its first run is undone and
//! made again, and from then on it stashes copies.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use tch::Tensor;

use super::buffers::restore;
use super::flight::{Inputs, Live, Transit};
use super::forward::Pass;
use super::gradients::finite;
use super::segment::{Segment, Which, Writes};
use super::watched::{Watched, changed, watch};
use super::{Running, TorchStage};
use crate::torch::error::TorchError;
use crate::torch::ffi::{self, Graph, RandomScope};
use crate::torch::layer::Context;
use crate::torch::rng;
use crate::torch::skips::{SkipBox, Stashed};
use crate::torch::step::Mode;
use crate::torch::values::{Values, hand_over};

/// What comes out of a segment.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) outputs: Values,
    /// The skips that leave it, detached.
    pub(super) skips: Vec<(usize, Option<Tensor>)>,
    pub(super) live: Option<Live>,
}

/// One run, and what its layers wrote to.
#[derive(Debug)]
struct Attempt {
    passed: Passed,
    wrote: Writes,
    /// What of it was not a copy of their own.
    harm: Writes,
}

impl TorchStage {
    /// Runs a segment, with its graph (whose first roots are the skips that leave
    /// it) or without any. Outputs of the stage's last segment are not roots yet.
    pub(super) fn run_segment(
        &mut self,
        which: Which,
        inputs: &Inputs,
        graph: bool,
        pass: Pass<'_>,
    ) -> anyhow::Result<Passed> {
        let Some(writes) = self.segment(which).writes else {
            return self.first_run(which, inputs, graph, pass);
        };
        let Attempt {
            passed,
            wrote,
            harm,
        } = self.attempt(which, inputs, graph, pass, writes)?;
        self.segment_mut(which).writes = Some(writes.and(wrote));
        if harm == Writes::default() {
            return Ok(passed);
        }
        // Without skips nobody but the sender's graph may have the value, and that
        // finds out by itself if it needs it, as it does in the uncut model.
        anyhow::ensure!(
            self.skips.is_empty(),
            "the stage's layers changed a value in place that may have been stashed, which they had \
             not done before; values will be copied from now on: run the step again"
        );
        Ok(passed)
    }

    /// Finds out what the segment writes to, on copies.
    fn first_run(
        &mut self,
        which: Which,
        inputs: &Inputs,
        graph: bool,
        pass: Pass<'_>,
    ) -> anyhow::Result<Passed> {
        let layers = self.segment(which).layers.clone();
        let buffers = self.save_buffers(&layers);
        let changes = self.changes_of(&layers)?;
        let mut writes = Writes {
            inputs: true,
            ..Writes::default()
        };
        loop {
            let done = self.attempt(which, inputs, graph, pass, writes);
            if !matches!(&done, Ok(done) if done.harm == Writes::default()) {
                restore(&buffers)?;
            }
            let done = done?;
            if done.harm == Writes::default() {
                let inputs = done.wrote.inputs;
                self.segment_mut(which).writes = Some(Writes { inputs, ..writes });
                self.note_moves(&layers, &changes, &buffers)?;
                return Ok(done.passed);
            }
            writes = writes.and(done.wrote);
        }
    }

    fn attempt(
        &mut self,
        which: Which,
        inputs: &Inputs,
        graph: bool,
        pass: Pass<'_>,
        writes: Writes,
    ) -> anyhow::Result<Attempt> {
        let mut stashed = Watched::new();
        // The caller's own tensors are never written to, and neither is what the
        // segment will be run with once more.
        let copies = writes.inputs || self.is_first(which) || pass.again;
        let seen = inputs.seen(copies)?;
        let watched = watch(seen.tensors())?;
        let passed = if graph {
            self.with_graph(which, (seen, copies), pass, writes, &mut stashed)?
        } else {
            let _no_grad = tch::no_grad_guard();
            self.without_graph(which, seen, pass, writes, &mut stashed)?
        };
        let wrote = Writes {
            inputs: changed(&watched)?,
            stashes: changed(&stashed)?,
        };
        Ok(Attempt {
            passed,
            wrote,
            harm: Writes {
                inputs: wrote.inputs && !copies,
                stashes: wrote.stashes,
            },
        })
    }

    fn with_graph(
        &mut self,
        which: Which,
        (inputs, copies): (Inputs, bool),
        pass: Pass<'_>,
        writes: Writes,
        stashed: &mut Watched,
    ) -> anyhow::Result<Passed> {
        let mut live = Live::new()?;
        live.saved = match pass.stows {
            Some(least) => Some(self.shelf(&inputs, copies, least)?),
            None => None,
        };
        let main = live.enter(inputs.main)?;
        let mut transit = Transit::new();
        for (skip, value) in inputs.skips {
            transit.insert(skip, live.enter_skip(skip, value)?);
        }
        let layers = self.segment(which).layers.clone();
        let mut run = Run {
            transit: &mut transit,
            stashed,
            copy_stashes: writes.stashes,
        };
        let mut outputs = self.run_layers(layers, main, &mut run, pass, Some(&mut live))?;
        let segment = self.segment(which);
        let mut skips = Vec::with_capacity(segment.outgoing.len());
        for &skip in &segment.outgoing {
            let value = transit.remove(&skip).flatten();
            let absent = Tensor::new();
            live.graph.root(value.as_ref().unwrap_or(&absent))?;
            skips.push((skip, value.as_ref().map(hand_over).transpose()?));
        }
        live.outgoing.clone_from(&segment.outgoing);
        if matches!(which, Which::Segment(number) if number + 1 < self.segments.len()) {
            add_roots(&mut live.graph, &outputs)?;
            outputs = outputs.try_map(|tensor| hand_over(&tensor))?;
        }
        Ok(Passed {
            outputs,
            skips,
            live: Some(live),
        })
    }

    fn without_graph(
        &mut self,
        which: Which,
        inputs: Inputs,
        pass: Pass<'_>,
        writes: Writes,
        stashed: &mut Watched,
    ) -> anyhow::Result<Passed> {
        let mut transit: Transit = inputs.skips.into_iter().collect();
        let layers = self.segment(which).layers.clone();
        let mut run = Run {
            transit: &mut transit,
            stashed,
            copy_stashes: writes.stashes,
        };
        let outputs = self.run_layers(layers, inputs.main, &mut run, pass, None)?;
        let outgoing = self.segment(which).outgoing.iter();
        let skips = outgoing
            .map(|skip| (*skip, transit.remove(skip).flatten()))
            .collect();
        Ok(Passed {
            outputs,
            skips,
            live: None,
        })
    }

    fn run_layers(
        &mut self,
        layers: Range<usize>,
        mut values: Values,
        run: &mut Run<'_>,
        pass: Pass<'_>,
        mut live: Option<&mut Live>,
    ) -> anyhow::Result<Values> {
        for number in layers {
            self.running = Running::Layer(number);
            let saved = live.as_ref().and_then(|live| live.saved.as_ref());
            let shelf = saved.map(|saved| saved.shelf.enter());
            values = self.run_layer(number, values, run, pass)?;
            drop(shelf);
            if let Some(live) = live.as_deref_mut() {
                values
                    .present()
                    .try_for_each(|output| live.graph.mark(output, number))?;
                self.sweep(live)?;
            }
        }
        self.running = Running::Nothing;
        Ok(values)
    }

    fn run_layer(
        &self,
        number: usize,
        inputs: Values,
        run: &mut Run<'_>,
        pass: Pass<'_>,
    ) -> anyhow::Result<Values> {
        let built = &self.layers[number];
        let seed = rng::pass_seed(built.seed, pass.settings.step, pass.micro.index());
        let random = RandomScope::open(seed)?;
        let autocast = self.precision.scope(self.device)?;
        let ctx = Context {
            train: matches!(pass.settings.mode, Mode::Train { .. }),
            micro: pass.micro,
            asked: Cell::default(),
            device: self.device,
            recomputing: pass.recomputing,
            precision: self.precision,
            skips: SkipBox::new(
                &built.declared,
                self.waiting(number, run.transit),
                run.copy_stashes,
            ),
        };
        let outputs = built.layer.forward(inputs, &ctx)?;
        drop(autocast);
        if let Some(graphs) = &self.graphs {
            graphs.watch(&built.name, &ctx, &random);
        }
        let stashed = ctx.skips.finish()?;
        let outputs = apart(outputs, !stashed.is_empty())?;
        self.stashed(number, &stashed, run)?;
        if pass.settings.mode.fails_on_non_finite() {
            for output in outputs.present() {
                anyhow::ensure!(finite(output)?, "an output is not finite (NaN or infinity)");
            }
        }
        Ok(outputs)
    }

    /// What a layer finds to pop, by name.
    fn waiting(&self, number: usize, transit: &mut Transit) -> HashMap<String, Option<Tensor>> {
        let layer = self.first_layer + number;
        let skips = self.skips.iter().enumerate();
        skips
            .filter(|(_, skip)| skip.to == layer)
            .map(|(id, skip)| (skip.name.clone(), transit.remove(&id).flatten()))
            .collect()
    }

    /// Puts what a layer stashed on its ways.
    fn stashed(
        &self,
        number: usize,
        stashed: &[Stashed],
        run: &mut Run<'_>,
    ) -> Result<(), TorchError> {
        let layer = self.first_layer + number;
        for (id, skip) in self.skips.iter().enumerate().rev() {
            let own = |stash: &&Stashed| skip.from == layer && skip.name == stash.name;
            let Some(stash) = stashed.iter().find(own) else {
                continue;
            };
            let value = stash.value.as_ref().map(|value| {
                if run.copy_stashes {
                    return ffi::way(&ffi::copy(value)?);
                }
                run.stashed.push((value.shallow_clone(), stash.changes));
                ffi::way(value)
            });
            run.transit.insert(id, value.transpose()?);
        }
        Ok(())
    }

    /// Whether what goes in is the caller's.
    fn is_first(&self, which: Which) -> bool {
        self.first && self.segment(which).layers.start == 0
    }

    fn segment(&self, which: Which) -> &Segment {
        match which {
            Which::Segment(number) => &self.segments[number],
            Which::Whole => &self.whole,
        }
    }

    fn segment_mut(&mut self, which: Which) -> &mut Segment {
        match which {
            Which::Segment(number) => &mut self.segments[number],
            Which::Whole => &mut self.whole,
        }
    }
}

/// A layer's outputs, each on a way of its own where there are other ways.
///
/// One value may leave a layer several times: as outputs, stashed, passed on by the
/// next. Where a stage ends there, what comes back along each way has been added up
/// on the other side, and the sums then join in the order of the graph's roots: the
/// skips, then the outputs. The same is done where no stage ends, so that the bits
/// do not depend on it; ways begun last come first.
fn apart(outputs: Values, stashes: bool) -> Result<Values, TorchError> {
    if !stashes && outputs.len() < 2 {
        return Ok(outputs);
    }
    let reversed = outputs.into_iter().rev();
    let ways = reversed.map(|output| output.as_ref().map(ffi::way).transpose());
    let mut ways: Vec<_> = ways.collect::<Result<_, _>>()?;
    ways.reverse();
    Ok(ways.into_iter().collect())
}

/// Where the values of skips are during a run.
struct Run<'a> {
    transit: &'a mut Transit,
    stashed: &'a mut Watched,
    copy_stashes: bool,
}

/// Makes a graph's outputs its roots.
pub(super) fn add_roots(graph: &mut Graph, outputs: &Values) -> Result<(), TorchError> {
    let absent = Tensor::new();
    outputs
        .iter()
        .try_for_each(|output| graph.root(output.unwrap_or(&absent)))
}
