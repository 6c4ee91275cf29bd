//! A stage's layers: running them in sequence, and their gathered state of a step.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use tch::Device;

use super::border::{BorderGradients, SkipList, SkipValues};
use super::graph_audit::GraphAudit;
use super::inputs::Inputs;
use super::live::{Half, Live};
use super::own_tensors::{GivenOut, OwnTensors};
use super::pass::Pass;
use super::progress::Progress;
use super::segment::Segment;
use super::skip_routes::{SkipRoutes, fan_out};
use super::writes::{Watched, Writes};
use crate::error::TorchError;
use crate::ffi::{self, RandomScope};
use crate::gradients::finite;
use crate::layer::Context;
use crate::precision::Precision;
use crate::rng;
use crate::sequential::BuiltLayer;
use crate::skips::SkipBox;
use crate::step::Mode;
use crate::step_state::{Gathered, GatheredParts, StepState, StepStates};
use crate::values::{Values, hand_over};

/// The layers of a stage.
#[derive(Debug)]
pub(super) struct Layers {
    all: Vec<BuiltLayer>,
    device: Device,
    precision: Precision,
    own: OwnTensors,
    skips: SkipRoutes,
    progress: Progress,
    /// Set if CUDA graphs are requested.
    audit: Option<Rc<GraphAudit>>,
    /// State gathered by layers in a step that is not yet certain to count.
    step_states: StepStates,
}

/// Output of a segment.
#[derive(Debug)]
pub(super) struct SegmentOutput {
    values: Values,
    /// Outgoing skips, detached.
    skips: SkipList,
    live: Option<Live>,
}

/// State and findings of a run from layer to layer.
#[derive(Debug)]
pub(super) struct LayerRun<'a> {
    skips: SkipValues,
    stashed: Watched,
    given_out: GivenOut<'a>,
    copy_stashes: bool,
}

impl Layers {
    pub(super) fn new(
        all: Vec<BuiltLayer>,
        (device, precision): (Device, Precision),
        own: OwnTensors,
        skips: SkipRoutes,
        audit: Option<Rc<GraphAudit>>,
    ) -> Self {
        Self {
            progress: Progress::new(all.iter().map(|layer| layer.name.clone())),
            all,
            device,
            precision,
            own,
            skips,
            audit,
            step_states: StepStates::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// Their parameters and buffers.
    pub(super) fn own(&self) -> &OwnTensors {
        &self.own
    }

    pub(super) fn skips(&self) -> &SkipRoutes {
        &self.skips
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn audit(&self) -> Option<&GraphAudit> {
        self.audit.as_deref()
    }

    /// The number of the layer that has this parameter.
    pub(super) fn owner(&self, parameter: &str) -> Option<usize> {
        self.all.iter().position(|layer| layer.owns(parameter))
    }

    /// Returns whether some have gathered state that only counts after a good step.
    pub(super) fn have_gathered(&self) -> bool {
        !self.step_states.is_empty()
    }

    /// The name of one whose forward pass cannot be replayed by a CUDA graph.
    pub(super) fn not_graph_safe(&self) -> Option<&str> {
        let mut all = self.all.iter();
        let layer = all.find(|layer| !layer.layer.graph_safe())?;
        Some(&layer.name)
    }

    // The forward.

    /// Runs the layers in sequence; `has_next` tells whether another segment takes the outputs.
    pub(super) fn run(
        &self,
        segment: &Segment,
        inputs: Inputs,
        mut live: Option<Live>,
        has_next: bool,
        pass: Pass<'_>,
        run: &mut LayerRun<'_>,
    ) -> anyhow::Result<SegmentOutput> {
        let (mut values, skips) = inputs.into_values();
        if let Some(live) = &mut live {
            values = live.enter(values)?;
        }
        for (skip, mut value) in skips {
            if let Some(live) = &mut live {
                value = live.enter_skip(skip, value)?;
            }
            run.skips.put(skip, value);
        }
        for number in segment.layers().clone() {
            self.progress.layer(number);
            let saving = live.as_ref().and_then(Live::saving);
            values = self.run_layer(number, values, run, pass)?;
            drop(saving);
            if let Some(live) = &mut live {
                live.layer_done(&values, number)?;
            }
        }
        self.progress.outside();
        let mut skips = SkipList::with_capacity(segment.outgoing().len());
        for &skip in segment.outgoing() {
            let mut value = run.skips.take(skip);
            if let Some(live) = &mut live {
                value = live.skip_root(skip, value.as_ref())?;
            }
            skips.push((skip, value));
        }
        if let Some(live) = live.as_mut().filter(|_| has_next) {
            live.roots(&values)?;
            values = values.try_move(|tensor| hand_over(&tensor))?;
        }
        Ok(SegmentOutput {
            values,
            skips,
            live,
        })
    }

    fn run_layer(
        &self,
        number: usize,
        inputs: Values,
        run: &mut LayerRun<'_>,
        pass: Pass<'_>,
    ) -> anyhow::Result<Values> {
        let built = &self.all[number];
        let settings = pass.settings();
        let random = RandomScope::open(pass_seed(built.seed, pass))?;
        let autocast = self.precision.scope(self.device)?;
        let pops = if self.skips.is_empty() {
            HashMap::new()
        } else {
            self.skips.pops(number, &inputs, &mut run.skips)?
        };
        let ctx = Context {
            train: matches!(settings.mode, Mode::Train { .. }),
            micro: pass.micro(),
            asked: Cell::default(),
            device: self.device,
            recomputing: pass.is_recompute(),
            past: settings.mode.past(),
            precision: self.precision,
            skips: SkipBox::new(&built.declared, pops, run.copy_stashes),
            layer: number,
            step_states: self.step_states.clone(),
            gathered: Cell::default(),
        };
        let mut outputs = built.layer.forward(inputs, &ctx)?;
        drop(autocast);
        if let Some(audit) = &self.audit {
            audit.layer(&built.name, &ctx, &random);
        }
        let stashed = ctx.skips.finish()?;
        let mut own = false;
        if run.given_out.may(number) {
            (outputs, own) = run.given_out.outputs(&self.own, number, outputs)?;
        }
        let outputs = fan_out(outputs, own || !stashed.is_empty())?;
        for (skip, stash) in self.skips.stashes(number, &stashed) {
            let value = stash.value.as_ref().map(|value| {
                if run.copy_stashes {
                    return ffi::accumulation_node(&ffi::copy(value)?);
                }
                run.stashed.add(value, stash.changes);
                ffi::accumulation_node(value)
            });
            run.skips.put(skip, value.transpose()?);
        }
        if settings.mode.fails_on_non_finite() {
            for output in outputs.present() {
                anyhow::ensure!(finite(output)?, "an output is not finite (NaN or infinity)");
            }
        }
        Ok(outputs)
    }

    // The backward.

    /// Goes back through a segment's graph. An error is that of the layer whose backward
    /// failed.
    pub(super) fn backward(
        &self,
        live: &mut Live,
        half: Half,
        grads: &mut BorderGradients,
    ) -> anyhow::Result<()> {
        let done = live.backward(half, grads);
        done.map_err(|error| self.blame(live, error))
    }

    /// The second half.
    pub(super) fn backward_weight(&self, live: &mut Live) -> anyhow::Result<()> {
        let done = live.backward_weight();
        done.map_err(|error| self.blame(live, error))
    }

    fn blame(&self, live: &Live, error: TorchError) -> anyhow::Error {
        match live.layer() {
            Some(number) => self.progress.layer(number),
            None => self.progress.outside(),
        }
        error.into()
    }

    // Between steps.

    /// Draws random numbers as a model does that was built with this seed.
    pub(super) fn reseed(&mut self, seed: u64) {
        for layer in &mut self.all {
            layer.seed = rng::named_seed(seed, &layer.name);
        }
    }

    /// Commits the state gathered in the last step.
    pub(super) fn commit(&self) -> anyhow::Result<()> {
        let commit = |Gathered { layer, state }: Gathered| {
            let name = &self.all[layer].name;
            crate::caught(|| state.commit())
                .map_err(|error| error.context(format!("layer `{name}`")))
        };
        // The step counts for all layers, even if one fails.
        let all = self.step_states.take().into_iter().map(commit);
        all.collect::<Vec<_>>().into_iter().collect()
    }

    /// Returns the state gathered in the step, with the layers' numbers, for other replicas.
    ///
    /// # Errors
    /// A layer cannot share it; the error is that layer's.
    pub(super) fn gathered(&self) -> anyhow::Result<Vec<(usize, GatheredParts)>> {
        let parts = |layer: usize, state: &dyn StepState| {
            self.progress.layer(layer);
            let parts = state.parts()?;
            Ok((layer, parts.ok_or_else(not_shared)?))
        };
        let all = self.step_states.each(parts)?;
        self.progress.outside();
        Ok(all)
    }

    /// Adds what a layer has gathered in another replica.
    ///
    /// # Errors
    /// It has gathered nothing here; the error is the layer's.
    pub(super) fn merge(&self, layer: usize, other: GatheredParts) -> anyhow::Result<()> {
        self.progress.layer(layer);
        let GatheredParts { name, parts } = other;
        let mut parts = Some(parts);
        self.step_states.each(|own, state| {
            let same = own == layer && state.parts()?.is_some_and(|own| own.name == name);
            if let Some(parts) = parts.take_if(|_| same) {
                state.merge(parts)?;
            }
            Ok(())
        })?;
        anyhow::ensure!(
            parts.is_none(),
            "`{name}` gathers something in some micro-batches and nothing in those of the last \
             replica: such a layer cannot be trained with replicas"
        );
        self.progress.outside();
        Ok(())
    }

    /// Discards the state gathered in the last step.
    pub(super) fn undo(&self) {
        for gathered in self.step_states.take() {
            // If even this panics, the step's own error is the one to report.
            gpipe_engine::panics::survived(|| gathered.state.discard());
        }
    }
}

impl<'a> LayerRun<'a> {
    /// For a segment of which it is known which layers give out the stage's own tensors, and
    /// what layers write to.
    pub(super) fn new(owners: Option<&'a [usize]>, known: Writes) -> Self {
        Self {
            skips: SkipValues::default(),
            stashed: Watched::default(),
            given_out: GivenOut::new(owners, known.to_own()),
            copy_stashes: known.to_stashes(),
        }
    }

    /// Returns whether stashes, or the stage's own tensors among the outputs, have been written to.
    pub(super) fn wrote(&self) -> Result<Writes, TorchError> {
        let own = self.given_out.changed()?;
        Ok(Writes::new(false, self.stashed.changed()?, own))
    }

    /// Puts back what was given out and changed, after a first run.
    pub(super) fn restore(&mut self) -> Result<(), TorchError> {
        self.given_out.restore()
    }

    /// The layers that gave out something of the stage's own.
    pub(super) fn into_owners(self) -> Vec<usize> {
        self.given_out.into_found()
    }
}

impl SegmentOutput {
    pub(super) fn new(values: Values, skips: SkipList) -> Self {
        let live = None;
        Self {
            values,
            skips,
            live,
        }
    }

    /// Returns its values and skips.
    pub(super) fn into_values(self) -> (Values, SkipList) {
        (self.values, self.skips)
    }

    /// Returns the same, and the graph.
    pub(super) fn into_live(self) -> anyhow::Result<(Values, SkipList, Live)> {
        match self.live {
            Some(live) => Ok((self.values, self.skips, live)),
            None => anyhow::bail!("a segment was run without its graph"),
        }
    }
}

/// The seed of what draws in a pass.
pub(super) fn pass_seed(seed: u64, pass: Pass<'_>) -> u64 {
    rng::pass_seed(seed, pass.settings().step, pass.micro().index())
}

/// Error of state that cannot be shared.
fn not_shared() -> TorchError {
    TorchError::new(
        "it gathers something over the step that replicas cannot share: its `StepState` has no \
         `parts`; train it without replicas, or write them",
    )
}
