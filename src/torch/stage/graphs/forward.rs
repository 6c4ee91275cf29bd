//! `F` through a graph.

use std::rc::Rc;

use tch::Tensor;

use super::Graphs;
use super::copies::{fresh_or_none, once};
use super::slot::{Part, Shape, Slot, copies, fill_all};
use crate::torch::error::TorchError;
use crate::torch::stage::TorchStage;
use crate::torch::stage::activations::{Half, Inputs, Live};
use crate::torch::stage::buffers::{Before, restore};
use crate::torch::stage::compute::{Passed, add_roots};
use crate::torch::stage::forward::Pass;
use crate::torch::stage::segment::Which;
use crate::torch::values::hand_over;

/// The stage's only segment: stages that recompute have no graphs.
pub(super) const SEGMENT: usize = 0;

/// How a forward began.
#[derive(Debug)]
pub(in crate::torch::stage) enum Start {
    /// It did not: these are still to be computed with.
    Eager(Inputs),
    /// It is done.
    Replayed(Passed, Box<Slot>),
}

impl TorchStage {
    /// Runs the stage's layers through a graph, if they are to.
    pub(in crate::torch::stage) fn start(
        &mut self,
        inputs: Inputs,
        pass: Pass<'_>,
    ) -> anyhow::Result<Start> {
        if self.graphs.is_none() || pass.again || self.segments.len() != 1 {
            return Ok(Start::Eager(inputs));
        }
        // A graph has memory of its own for each value that it is given.
        if inputs.main.share_memory()? {
            self.refuse_graphs(|| "its inputs share memory with each other".to_owned())?;
            return Ok(Start::Eager(inputs));
        }
        let wanted = |graphs: &mut Graphs| {
            let shape = graphs.wanted(&inputs)?;
            Some((graphs.take(&shape, graphs.half(pass)), shape))
        };
        let mut slot = match self.graphs.as_mut().and_then(wanted) {
            None => return Ok(Start::Eager(inputs)),
            Some((Some(slot), _)) => {
                fill_all(slot.inputs.all(), inputs.all())?;
                slot
            }
            Some((None, shape)) => match self.capture_forward(&inputs, shape, pass) {
                Ok(slot) => slot,
                Err(error) => {
                    let why = self.why_not(&error);
                    self.refuse_graphs(|| why)?;
                    return Ok(Start::Eager(inputs));
                }
            },
        };
        drop(inputs);
        self.launch(&mut slot, Part::Forward, pass)?;
        // The loss is here, and done with the outputs before the slot is used again.
        let (outputs, skips) = if self.last {
            (slot.outputs.shallow_clone(), copies(&slot.skips)?)
        } else {
            slot.sent()?
        };
        let passed = Passed {
            outputs,
            skips,
            live: None,
        };
        Ok(Start::Replayed(passed, slot))
    }

    fn capture_forward(
        &mut self,
        inputs: &Inputs,
        shape: Shape,
        pass: Pass<'_>,
    ) -> anyhow::Result<Box<Slot>> {
        let mut inputs = inputs.fresh()?;
        let pool = self.streams.pool()?;
        let streams = Rc::clone(&self.streams);
        let writes = self.segments[SEGMENT].writes;
        let buffers = self.saved_for_rehearsal();
        // Should the backward need another run, that finds what was in the buffers.
        let captured = streams.capture(pool, || {
            inputs.before = self.before(&self.segments[SEGMENT].layers)?;
            self.run_segment(Which::Segment(SEGMENT), &inputs, true, pass)
        });
        restore(&buffers)?;
        let (forward, passed) = captured?;
        anyhow::ensure!(
            self.segments[SEGMENT].writes == writes,
            "its layers change a value in place now and then"
        );
        anyhow::ensure!(
            !passed.outputs.share_memory()?,
            "its outputs share memory with each other"
        );
        self.graphs.iter().try_for_each(Graphs::still_wanted)?;
        let mut live = passed
            .live
            .ok_or_else(|| anyhow::anyhow!("a forward without a graph"))?;
        add_roots(&mut live.graph, &passed.outputs)?;
        let outputs = passed.outputs.try_move(|tensor| hand_over(&tensor))?;
        let slot = Slot {
            shape,
            half: self
                .graphs
                .as_ref()
                .map_or(Half::Joint, |graphs| graphs.half(pass)),
            pool,
            inputs,
            forward,
            outputs,
            skips: passed.skips,
            live: Some(live),
            back: None,
            weight: None,
        };
        // What cannot be copied is found out here.
        slot.sent()?;
        if self.streams.rehearses() {
            let skips = slot.skips.iter().map(|(_, value)| value.as_ref());
            spoil(slot.outputs.iter().chain(skips))?;
        }
        self.note_capture();
        Ok(Box::new(slot))
    }

    pub(super) fn note_capture(&mut self) {
        let places = self.places();
        if let Some(graphs) = &mut self.graphs {
            graphs.note_capture(places);
        }
    }

    /// Puts one of the slot's graphs into the stream.
    pub(super) fn launch(
        &mut self,
        slot: &mut Slot,
        part: Part,
        pass: Pass<'_>,
    ) -> anyhow::Result<()> {
        let graph = slot
            .graph(part)
            .ok_or_else(|| anyhow::anyhow!("a graph that was not captured"))?;
        self.streams.replay(graph)?;
        if let Some(graphs) = &self.graphs {
            graphs.note_replay();
        }
        if !self.streams.rehearses() {
            return Ok(());
        }
        match part {
            Part::Forward => self.rehearse_forward(slot, pass),
            Part::Back => self.rehearse_back(slot, pass),
            Part::Weight => self.rehearse_weight(slot, pass),
        }
    }

    /// Where there is no device that could replay: does what the graph holds.
    fn rehearse_forward(&mut self, slot: &mut Slot, pass: Pass<'_>) -> anyhow::Result<()> {
        slot.inputs.before = self.before(&self.segments[SEGMENT].layers)?;
        let passed = self.run_segment(Which::Segment(SEGMENT), &slot.inputs, true, pass)?;
        fill_all(slot.outputs.iter(), passed.outputs.iter())?;
        fill_all(
            slot.skips.iter().map(|(_, value)| value.as_ref()),
            passed.skips.iter().map(|(_, value)| value.as_ref()),
        )?;
        slot.live = Some(rooted(passed)?);
        Ok(())
    }

    /// Where there is no device: the autograd graph of the slot's forward, which the
    /// capture of its backward has used up.
    pub(super) fn rehearsed(&mut self, slot: &mut Slot, pass: Pass<'_>) -> anyhow::Result<Live> {
        if let Some(live) = slot.live.take() {
            return Ok(live);
        }
        let layers = self.segments[SEGMENT].layers.clone();
        let inputs = &slot.inputs;
        let passed = self.as_before(&layers, &inputs.before, |stage| {
            stage.run_segment(Which::Segment(SEGMENT), inputs, true, pass)
        })?;
        rooted(passed)
    }

    /// Buffers as they are, where to capture is to compute.
    fn saved_for_rehearsal(&self) -> Vec<(Tensor, Tensor)> {
        if self.streams.rehearses() {
            self.save_buffers(&self.segments[SEGMENT].layers)
        } else {
            Vec::new()
        }
    }
}

impl Inputs {
    /// Tensors of its own.
    fn fresh(&self) -> Result<Self, TorchError> {
        Ok(Self {
            main: self
                .main
                .iter()
                .map(fresh_or_none)
                .collect::<Result<_, _>>()?,
            skips: copies(&self.skips)?,
            before: Before::new(),
        })
    }

    /// The main values, then those of skips.
    pub(super) fn all(&self) -> impl Iterator<Item = Option<&Tensor>> {
        let skips = self.skips.iter().map(|(_, value)| value.as_ref());
        self.main.iter().chain(skips)
    }
}

/// The autograd graph with its outputs for roots.
fn rooted(passed: Passed) -> anyhow::Result<Live> {
    let mut live = passed
        .live
        .ok_or_else(|| anyhow::anyhow!("a forward without a graph"))?;
    add_roots(&mut live.graph, &passed.outputs)?;
    Ok(live)
}

/// Has numbers that nobody may see before a replay be none: a capture computes nothing.
pub(super) fn spoil<'a>(values: impl Iterator<Item = Option<&'a Tensor>>) -> anyhow::Result<()> {
    for tensor in values.flatten().filter(|tensor| tensor.is_floating_point()) {
        let _ = tch::no_grad(|| -> anyhow::Result<_> { Ok(once(tensor)?.f_fill_(f64::NAN)?) })?;
    }
    Ok(())
}
