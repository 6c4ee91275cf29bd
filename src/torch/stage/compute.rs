//! Runs a stage's layers.
//!
//! A layer may change its inputs in place. Within a stage that is as in the uncut model; but a
//! segment's inputs may be in use elsewhere. The caller's own tensors, and the inputs of a segment
//! that recomputes, are always copied first. Others may be needed by the sender's backward or by
//! another stage that pops them. Whether a segment writes to its inputs is found out in its first
//! run, on copies; if so, it gets copies from then on. Other segments, nearly all, copy nothing. If
//! it writes to its stashes, its first run is undone and repeated, and from then on it stashes
//! copies.

use gpipe_partitioner::MicroId;
use tch::Tensor;

use super::border::Arrived;
use super::buffers::{BufferValues, Buffers};
use super::inputs::Inputs;
use super::layers::{LayerRun, Layers, SegmentOutput};
use super::live::Live;
use super::pass::{Pass, Purpose};
use super::segment::{RunUnit, Segments};
use super::writes::{Watched, Writes};
use crate::error::TorchError;
use crate::step::StepSettings;
use crate::values::Values;

/// Runs the layers of a stage.
#[derive(Debug)]
pub(super) struct Compute {
    /// Whether the inputs are the caller's.
    first: bool,
    layers: Layers,
    buffers: Buffers,
    segments: Segments,
}

/// One run of a segment, and the tensors that its layers wrote to.
#[derive(Debug)]
struct Run {
    output: SegmentOutput,
    wrote: Writes,
    /// Writes to tensors other than the run's own copies.
    harm: Writes,
    /// Layers that output parameters or buffers.
    owners: Vec<usize>,
}

impl Compute {
    pub(super) fn new(first: bool, layers: Layers, buffers: Buffers, segments: Segments) -> Self {
        Self {
            first,
            layers,
            buffers,
            segments,
        }
    }

    /// Returns whether the inputs are the caller's.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }

    pub(super) fn layers(&self) -> &Layers {
        &self.layers
    }

    pub(super) fn layers_mut(&mut self) -> &mut Layers {
        &mut self.layers
    }

    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(super) fn layers_and_buffers(&mut self) -> (&Layers, &mut Buffers) {
        (&self.layers, &mut self.buffers)
    }

    pub(super) fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    pub(super) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(super) fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    // The forward.

    /// Runs a segment, with its graph (whose first roots are the skips that leave
    /// it) or without any. Outputs of the stage's last segment are not roots yet.
    pub(super) fn run(
        &mut self,
        unit: RunUnit,
        inputs: &Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<SegmentOutput> {
        let Some(known) = self.segments.get(unit).writes() else {
            return self.first_run(unit, inputs, pass);
        };
        let run = self.run_once(unit, inputs, pass, known)?;
        self.segments.get_mut(unit).set_writes(known.and(run.wrote));
        if !run.harm.any() {
            return Ok(run.output);
        }
        anyhow::ensure!(
            !run.harm.to_own(),
            "the stage's layers changed a parameter or buffer in place that a layer before them gave \
             out, which they had not done before; it will be copied from now on"
        );
        // Without skips only the sender's graph may have saved the value, and autograd reports it
        // if that graph needs it, as in the uncut model.
        anyhow::ensure!(
            self.layers.skips().is_empty(),
            "the stage's layers changed a value in place that may have been stashed, which they had \
             not done before; values will be copied from now on: run the step again"
        );
        Ok(run.output)
    }

    /// Finds out which tensors the segment writes to, on copies.
    fn first_run(
        &mut self,
        unit: RunUnit,
        inputs: &Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<SegmentOutput> {
        let layers = self.segments.get(unit).layers();
        let before = self.buffers.before_first_run(layers)?;
        let mut writes = Writes::new(true, false, false);
        loop {
            let done = self.run_once(unit, inputs, pass, writes);
            if !matches!(&done, Ok(done) if !done.harm.any()) {
                before.restore()?;
            }
            let done = done?;
            if !done.harm.any() {
                let writes = writes.with_inputs(done.wrote.to_inputs());
                self.segments.get_mut(unit).learn(writes, done.owners);
                self.buffers.note_moved(&before)?;
                return Ok(done.output);
            }
            writes = writes.and(done.wrote);
        }
    }

    fn run_once(
        &self,
        unit: RunUnit,
        inputs: &Inputs,
        pass: Pass<'_>,
        known: Writes,
    ) -> anyhow::Result<Run> {
        let segment = self.segments.get(unit);
        // The caller's own tensors, and inputs for a recompute, are never written to.
        let callers = self.first && segment.layers().start == 0;
        let copies = known.to_inputs() || callers || pass.keeps_inputs();
        // Two of the caller's own tensors that require gradients get one each.
        let separate = callers && inputs.main().present().any(Tensor::requires_grad);
        let seen = inputs.seen(copies, separate)?;
        let watched = Watched::new(seen.tensors())?;
        let mut run = LayerRun::new(segment.owners(), known);
        let layers = &self.layers;
        let output = if pass.has_graph() {
            let saved = pass.offload();
            let saved = saved.map(|offload| offload.saved_tensors(layers.own(), &seen, copies));
            let live = Live::new(saved.transpose()?)?;
            let has_next = self.segments.has_next(unit);
            layers.run(segment, seen, Some(live), has_next, pass, &mut run)
        } else {
            let _no_grad = tch::no_grad_guard();
            layers.run(segment, seen, None, false, pass, &mut run)
        };
        let wrote = run.wrote()?.with_inputs(watched.changed()?);
        if wrote.to_own() || output.is_err() {
            run.restore()?;
        }
        Ok(Run {
            output: output?,
            wrote,
            harm: wrote.with_inputs(wrote.to_inputs() && !copies),
            owners: run.into_owners(),
        })
    }

    /// `F` in inference: no graph, and no segments.
    pub(super) fn infer(
        &mut self,
        micro: MicroId,
        inputs: Vec<Values>,
        settings: &StepSettings,
    ) -> anyhow::Result<Vec<Values>> {
        let incoming = self.layers.skips().incoming();
        let (values, mut skips, _) = Arrived::new(inputs, incoming).into_parts();
        let unit = RunUnit::AllLayers;
        let inputs = self.segments.get(unit).take_inputs(values, &mut skips);
        let pass = Pass::new(micro, settings, Purpose::Infer);
        let (values, leaving) = self.run(unit, &inputs, pass)?.into_values();
        skips.put_all(leaving);
        let mut sent = vec![values];
        sent.extend(skips.take_edges(self.layers.skips().outgoing()));
        Ok(sent)
    }

    // Recomputation.

    /// Returns whether a segment keeps its inputs instead of the graph of this micro-batch.
    pub(super) fn recomputes(&self, number: usize, micro: MicroId, micro_batches: usize) -> bool {
        self.segments.recomputes(number, micro, micro_batches)
    }

    /// Returns the current values of a segment's moving buffers.
    pub(super) fn moving_buffers(&self, unit: RunUnit) -> Result<BufferValues, TorchError> {
        self.buffers.moving(self.segments.get(unit).layers())
    }

    /// Runs a segment once more: with what its first run found in the buffers, and without
    /// effects on them. Gives its graph, with all roots.
    #[doc(alias = "activation checkpointing")]
    pub(super) fn recompute(
        &mut self,
        number: usize,
        inputs: &Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<Live> {
        let unit = RunUnit::Segment(number);
        let layers = self.segments.get(unit).layers();
        let rewound = self
            .buffers
            .rewind(layers, inputs.buffers(), self.layers.device())?;
        let output = rewound.run(|| self.run(unit, inputs, pass))?;
        let has_next = self.segments.has_next(unit);
        let (values, _, mut live) = output.into_live()?;
        if !has_next {
            live.roots(&values)?;
        }
        Ok(live)
    }
}
