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
use std::ops::Range;

use tch::Tensor;

use super::TorchStage;
use super::activations::{Inputs, Live, Transit};
use super::buffers::restore;
use super::forward::Pass;
use super::own_tensors::Own;
use super::segment::{Segment, Which, Writes};
use super::skip_routes::{Run, apart};
use super::writes::{Watched, changed, watch};
use crate::torch::error::TorchError;
use crate::torch::ffi::{Graph, RandomScope};
use crate::torch::gradients::finite;
use crate::torch::layer::Context;
use crate::torch::rng;
use crate::torch::skips::SkipBox;
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
    /// The layers that gave out parameters or buffers.
    owners: Vec<usize>,
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
            ..
        } = self.attempt(which, inputs, graph, pass, writes)?;
        self.segment_mut(which).writes = Some(writes.and(wrote));
        if harm == Writes::default() {
            return Ok(passed);
        }
        anyhow::ensure!(
            !harm.own,
            "the stage's layers changed a parameter or buffer in place that a layer before them gave \
             out, which they had not done before; it will be copied from now on"
        );
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
                let segment = self.segment_mut(which);
                segment.writes = Some(Writes { inputs, ..writes });
                segment.owners = Some(done.owners);
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
        // Two of the caller's own tensors that want gradients get one each.
        let apart = self.is_first(which) && inputs.main.present().any(Tensor::requires_grad);
        let seen = inputs.seen(copies, apart)?;
        let watched = watch(seen.tensors())?;
        let mut own = Own::new(self.segment(which).owners.clone(), writes.own);
        let passed = {
            let mut run = Run {
                transit: &mut Transit::new(),
                stashed: &mut stashed,
                own: &mut own,
                copy_stashes: writes.stashes,
            };
            if graph {
                self.with_graph(which, (seen, copies), pass, &mut run)
            } else {
                let _no_grad = tch::no_grad_guard();
                self.without_graph(which, seen, pass, &mut run)
            }
        };
        let wrote = Writes {
            inputs: changed(&watched)?,
            stashes: changed(&stashed)?,
            own: own.changed()?,
        };
        if wrote.own || passed.is_err() {
            own.restore()?;
        }
        Ok(Attempt {
            passed: passed?,
            wrote,
            harm: Writes {
                inputs: wrote.inputs && !copies,
                ..wrote
            },
            owners: own.found,
        })
    }

    fn with_graph(
        &mut self,
        which: Which,
        (inputs, copies): (Inputs, bool),
        pass: Pass<'_>,
        run: &mut Run<'_>,
    ) -> anyhow::Result<Passed> {
        let mut live = Live::new()?;
        live.saved = match pass.stows {
            Some(least) => Some(self.saved_pool(&inputs, copies, least)?),
            None => None,
        };
        let main = live.enter(inputs.main)?;
        for (skip, value) in inputs.skips {
            run.transit.insert(skip, live.enter_skip(skip, value)?);
        }
        let layers = self.segment(which).layers.clone();
        let mut outputs = self.run_layers(layers, main, run, pass, Some(&mut live))?;
        let segment = self.segment(which);
        let mut skips = Vec::with_capacity(segment.outgoing.len());
        for &skip in &segment.outgoing {
            let value = run.transit.remove(&skip).flatten();
            live.graph.roots([value.as_ref()].into_iter())?;
            skips.push((skip, value.as_ref().map(hand_over).transpose()?));
        }
        live.outgoing.clone_from(&segment.outgoing);
        if matches!(which, Which::Segment(number) if number + 1 < self.segments.len()) {
            add_roots(&mut live.graph, &outputs)?;
            outputs = outputs.try_move(|tensor| hand_over(&tensor))?;
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
        run: &mut Run<'_>,
    ) -> anyhow::Result<Passed> {
        run.transit.extend(inputs.skips);
        let layers = self.segment(which).layers.clone();
        let outputs = self.run_layers(layers, inputs.main, run, pass, None)?;
        let outgoing = self.segment(which).outgoing.iter();
        let skips = outgoing
            .map(|skip| (*skip, run.transit.remove(skip).flatten()))
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
            self.running.layer(number);
            let saved = live.as_ref().and_then(|live| live.saved.as_ref());
            let saved_pool = saved.map(|saved| saved.saved_pool.enter());
            values = self.run_layer(number, values, run, pass)?;
            drop(saved_pool);
            if let Some(live) = live.as_deref_mut() {
                values
                    .present()
                    .try_for_each(|output| live.graph.mark(output, number))?;
                self.sweep(live)?;
            }
        }
        self.running.nothing();
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
                self.waiting(number, &inputs, run.transit)?,
                run.copy_stashes,
            ),
            layer: number,
            step_states: self.step_states.clone(),
            gathered: Cell::default(),
        };
        let outputs = built.layer.forward(inputs, &ctx)?;
        drop(autocast);
        if let Some(graphs) = &self.graphs {
            graphs.watch(&built.name, &ctx, &random);
        }
        let stashed = ctx.skips.finish()?;
        let (outputs, own) = self.give_own(number, outputs, run.own)?;
        let outputs = apart(outputs, own || !stashed.is_empty())?;
        self.stashed(number, &stashed, run)?;
        if pass.settings.mode.fails_on_non_finite() {
            for output in outputs.present() {
                anyhow::ensure!(finite(output)?, "an output is not finite (NaN or infinity)");
            }
        }
        Ok(outputs)
    }

    /// From now on layers are run on copies: the loss function writes to outputs, which may
    /// be what arrived, and that may be another stage's parameter.
    pub(super) fn copy_inputs(&mut self) {
        let writes = self.segments.iter_mut().map(|segment| &mut segment.writes);
        writes.flatten().for_each(|writes| writes.inputs = true);
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

/// Makes a graph's outputs its roots.
pub(super) fn add_roots(graph: &mut Graph, outputs: &Values) -> Result<(), TorchError> {
    graph.roots(outputs.iter())
}
